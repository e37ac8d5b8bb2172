"""`DataLoader` worker processes that use a patched model, forked or spawned."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = '''
import sys, warnings
import torch
from torch.utils.data import DataLoader, Dataset
from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import tiny_model

torch.set_num_threads(1)


class Read(Dataset):
    """Items are what a patched model says: workers must have it whole."""

    def __init__(self, scheme):
        self.model = patch_model(tiny_model("llama"), scheme, factor=4)

    def __len__(self):
        return 4

    @torch.no_grad()
    def __getitem__(self, index):
        return self.model(torch.arange(3, 43)[None] + index).logits[0]


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than this machine has processors
    rows = Read("t5")
    alone = torch.stack([rows[i] for i in range(4)])
    for how in torch.multiprocessing.get_all_start_methods():
        batches = list(DataLoader(rows, batch_size=2, num_workers=1, multiprocessing_context=how, timeout=900))
        assert torch.equal(torch.cat(batches), alone), how
    print("same")
'''


@pytest.mark.slow
@pytest.mark.skipif("spawn" not in multiprocessing.get_all_start_methods(), reason="needs processes")
def test_workers_compute_what_the_main_process_computes(tmp_path: Path) -> None:
    """Also: no warning, in the main process, that is not an error here."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "same"
