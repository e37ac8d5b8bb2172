"""A full disk is reported before any work starts, with the bytes needed and free."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hf_posenc.errors import NoDiskSpace
from hf_posenc.training.run_folder import check_checkpoint_space

GIB = 1 << 30


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give the disk that many free bytes."""

    def has(free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=GIB, used=GIB - free, free=free))

    return has


def test_finetune_says_so_before_it_trains(tmp_path: Path, disk: Callable[[int], None]) -> None:
    pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
    from hf_posenc import patch_model
    from hf_posenc.training import Training, finetune
    from tests.training.test_finetune import TEXTS, llama, make_tokenizer

    disk(10)
    with pytest.raises(NoDiskSpace, match="10"):
        finetune(
            patch_model(llama(), "yarn", factor=2), make_tokenizer(), TEXTS,
            Training(length=32, steps=2, method="full"), out=tmp_path / "run",
            progress=lambda share, loss: pytest.fail("it has begun"),
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_three_copies_with_two_moments_each(tmp_path: Path, disk: Callable[[int], None]) -> None:
    """Of what is trained, and of nothing else."""
    model = nn.ModuleList([nn.Linear(10, 10, bias=False), nn.Linear(10, 1000, bias=False, dtype=torch.bfloat16)])
    model[1].requires_grad_(False)
    disk(3 * 3 * 4 * 100)
    check_checkpoint_space(tmp_path, model)
    disk(3 * 3 * 4 * 100 - 1)
    with pytest.raises(NoDiskSpace, match="3,600"):
        check_checkpoint_space(tmp_path, model)
