"""A Python that never saw the models loads them and gets the same numbers: one learned and one rotary scheme."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from safetensors.torch import save_file

from hf_posenc import patch_model
from hf_posenc.peft_adapters import save_peft_adapter

peft = pytest.importorskip("peft", reason="half of the models are PEFT adapters; they need the extra `train`")

READER = """
import sys
import torch, hf_posenc
from safetensors.torch import load_file

root = sys.argv[1]
ids = torch.randint(5, 64, (2, 64), generator=torch.Generator().manual_seed(1))
for scheme in ("t5", "yarn"):
    want = load_file(f"{root}/{scheme}.safetensors")
    models = {
        "model": hf_posenc.from_pretrained(f"{root}/{scheme}"),
        "adapter": hf_posenc.from_pretrained(f"{root}/base", peft_adapter=f"{root}/{scheme}-adapter"),
    }
    for name, model in models.items():
        gap = (model(ids).logits - want[name]).abs().max().item()
        assert gap <= 1e-4, (scheme, name, gap)  # of logits up to 30: threads may differ, and the order of sums
"""


def test_numbers_are_equal_in_a_fresh_process(host, answer, stir, tmp_path) -> None:
    host("llama").save_pretrained(tmp_path / "base")
    for scheme in ("t5", "yarn"):
        model = patch_model(host("llama"), scheme, factor=4)
        stir(model)
        model.save_pretrained(tmp_path / scheme)
        adapted = peft.get_peft_model(host("llama"), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        patch_model(adapted, scheme, factor=4)
        stir(adapted)
        save_peft_adapter(adapted, tmp_path / f"{scheme}-adapter")
        save_file({"model": answer(model), "adapter": answer(adapted)}, tmp_path / f"{scheme}.safetensors")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", READER, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
