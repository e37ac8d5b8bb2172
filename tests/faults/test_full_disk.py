"""A full disk: no work starts without the bytes it needs, and an export cut off part-way leaves what stood there."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from hf_posenc import export, patch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import NoDiskSpace, PosEncError
from hf_posenc.training.run_folder import check_checkpoint_space

WRITTEN = {
    "transformers": ("llama", "yarn"),
    "auto": ("gpt2", "alibi"),
    "gguf": ("llama", "yarn"),
    "bundle": ("llama", "yarn"),
}
ALLOWED = 1 << 14  # bytes of one file; the weights of each model are larger


@contextmanager
def small_files() -> Iterator[None]:
    """The system refuses to write more than `ALLOWED` bytes to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ALLOWED, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("to", ["transformers", "gguf", "bundle", pytest.param("auto", marks=pytest.mark.slow)])
def test_nothing_half_written_stays(to: str, tmp_path: Path) -> None:
    """A folder that is new, and one with files, among them a result of before."""
    if to == "gguf":
        pytest.importorskip("gguf", reason="gguf is not installed (pip install gguf)")
    family, scheme = WRITTEN[to]
    model, folder = patch_model(tiny_model(family), scheme, factor=2), tmp_path / "out"
    for there in ({}, {"notes.txt": "mine", "model.gguf": "of before"}):
        for name, text in there.items():
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        with small_files(), pytest.raises((OSError, SafetensorError)):
            export(model, folder, to=to)
        assert {path.name: path.read_text() for path in folder.rglob("*")} == there
        assert [path.name for path in tmp_path.iterdir()] == (["out"] if there else [])
    export(model, folder, to=to)
    assert any(path.suffix in (".safetensors", ".gguf") for path in folder.iterdir()), "it is the disk that stopped it"


@pytest.mark.parametrize("to", WRITTEN)
def test_a_file_where_the_folder_goes(to: str, tmp_path: Path) -> None:
    family, scheme = WRITTEN[to]
    model, out = patch_model(tiny_model(family), scheme, factor=2), tmp_path / "out"
    out.write_text("mine")
    with pytest.raises((PosEncError, OSError)):
        export(model, out, to=to)
    assert out.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [out]


GIB = 1 << 30


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give the disk that many free bytes."""

    def has(free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=GIB, used=GIB - free, free=free))

    return has


def test_finetune_says_so_before_it_trains(tmp_path: Path, disk: Callable[[int], None]) -> None:
    pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
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
