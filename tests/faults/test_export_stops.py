"""An export that is refused or meets a full disk leaves nothing, in any format."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_posenc import export_native, patch_model
from hf_posenc.checkpoints.gguf_file import export_gguf
from hf_posenc.checkpoints.other_class import export_auto
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import NotExpressible, PosEncError

Write = Callable[[Any, Path], Any]
FORMATS: dict[str, Write] = {
    "transformers": lambda model, out: export_native(model, out),
    "auto": lambda model, out: export_auto(model, out),
    "bundle": lambda model, out: model.save_pretrained(out, code="bundle"),
    "gguf": lambda model, out: export_gguf(model, out / "model.gguf"),
}
EVERY_FORMAT = pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)


def writable(write: Write, scheme: str = "pi") -> Any:
    if write is FORMATS["gguf"]:
        pytest.importorskip("gguf", reason="gguf is not installed (pip install gguf)")
    return patch_model(tiny_model("llama"), scheme, factor=4)


@EVERY_FORMAT
@pytest.mark.parametrize("there", [False, True], ids=["new", "existing"])
def test_a_full_disk(write: Write, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first file that is made durable; a folder that was there keeps its files."""
    model, out = writable(write), tmp_path / "out"
    if there:
        out.mkdir()
        (out / "notes.txt").write_text("mine")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for step in ("fsync", "replace", "rename"):
        monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space"):
        write(model, out)
    assert [path.name for path in tmp_path.rglob("*")] == (["out", "notes.txt"] if there else [])
    monkeypatch.undo()
    write(model, out)
    assert any(path.suffix in (".safetensors", ".gguf") for path in out.iterdir()), "it is the disk that stopped it"


@EVERY_FORMAT
def test_a_file_where_the_folder_goes(write: Write, tmp_path: Path) -> None:
    model, out = writable(write), tmp_path / "out"
    out.write_text("mine")
    with pytest.raises((PosEncError, OSError)):
        write(model, out)
    assert out.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("kind", [name for name in FORMATS if name != "bundle"])
def test_a_scheme_without_a_reader(kind: str, tmp_path: Path) -> None:
    """A bundle brings its code, and has none."""
    model = writable(FORMATS[kind], "kerple")
    with pytest.raises(NotExpressible):
        FORMATS[kind](model, tmp_path / "out")
    assert not list(tmp_path.iterdir())
