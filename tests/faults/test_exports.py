"""An export that the disk refuses part-way leaves nothing that looks like one, and what stood there stays."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from hf_posenc import export_auto, export_gguf, export_native, patch_model
from hf_posenc.checks.tiny_models import tiny_model

WRITERS: dict[str, tuple[str, str, Callable[[Any, Path], object]]] = {
    "transformers": ("llama", "yarn", export_native),
    "auto": ("gpt2", "alibi", export_auto),
    "gguf": ("llama", "yarn", lambda model, folder: export_gguf(model, folder / "model.gguf")),
    "bundle": ("llama", "yarn", lambda model, folder: model.save_pretrained(folder, code="bundle")),
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
    family, scheme, write = WRITERS[to]
    model, folder = patch_model(tiny_model(family), scheme, factor=2), tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with small_files(), pytest.raises((OSError, SafetensorError)):
        write(model, folder)
    assert {path.name for path in folder.rglob("*")} == {"notes.txt"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    write(model, folder)
    assert len(list(folder.iterdir())) > 1
