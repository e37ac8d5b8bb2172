"""An interrupted write leaves the old file, and results of several files are replaced all at once; other files stay."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.staged import move_in, staged
from hf_posenc.errors import FolderUnusable


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with staged(tmp_path) as stage:
        (stage / "sub").mkdir()
        (stage / "sub" / "a").write_text("new")
    assert {p.name for p in tmp_path.iterdir()} == {"notes.txt", "sub"}
    assert (tmp_path / "sub" / "a").read_text() == "new"


def test_a_new_folder_is_gone_after_a_failure(tmp_path: Path) -> None:
    def failing() -> None:
        with staged(tmp_path / "a" / "b") as stage:
            (stage / "x").write_text("")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        failing()
    assert list(tmp_path.iterdir()) == []


def test_opening_files_are_removed_first_and_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed in between finds a folder that does not open."""
    new, folder = tmp_path / "new", tmp_path / "folder"
    for one in (new, folder):
        one.mkdir()
        for name in ("config.json", "a", "model.safetensors", "curve.json"):
            (one / name).write_text(one.name)
    seen = []
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        replace(source, target)
        seen.append({p.name: p.read_text() for p in folder.iterdir() if p.is_file()})

    monkeypatch.setattr(os, "replace", watched)
    move_in(new, folder, last=("curve.json",))
    for state in seen[:-1]:
        values = {text for name, text in state.items()}
        assert len(values) <= 1 or "config.json" not in state or "curve.json" not in state
    opening = [state for state in seen if "config.json" in state]
    assert all(
        len({state[n] for n in ("config.json", "a", "model.safetensors") if n in state}) == 1 for state in opening
    )
    assert seen[-1] == dict.fromkeys(("config.json", "a", "model.safetensors", "curve.json"), "new")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_the_old_file_survives_a_failure_at_any_step(step, tmp_path, monkeypatch) -> None:
    path = tmp_path / "new" / "file"
    write_bytes(path, b"old")

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    monkeypatch.undo()
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name are POSIX's")
@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_pipe_is_not_replaced(through_a_link, tmp_path) -> None:
    """Nor is a device: as root, ``/dev/null`` would be an ordinary file from then on."""
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "pipe"
    if through_a_link:
        path = tmp_path / "link"
        path.symlink_to(tmp_path / "pipe")
    with pytest.raises(OSError, match="device or a pipe"):
        write_bytes(path, b"new")
    with pytest.raises(OSError, match="device or a pipe"), staged(tmp_path) as stage:
        (stage / path.name).write_bytes(b"new")
    assert (tmp_path / "pipe").is_fifo()
    assert path.is_symlink() == through_a_link


@pytest.mark.skipif(os.name == "nt", reason="permissions and links are POSIX's")
def test_permissions_are_those_of_any_other_file(tmp_path) -> None:
    new, private, link = tmp_path / "new", tmp_path / "private", tmp_path / "link"
    private.write_bytes(b"old")
    private.chmod(0o600)
    link.symlink_to(private)
    before = os.umask(0o027)
    try:
        write_bytes(new, b"1")
        write_bytes(link, b"2")
    finally:
        os.umask(before)
    assert new.stat().st_mode & 0o777 == 0o640
    assert private.stat().st_mode & 0o777 == 0o600
    assert link.is_symlink()
    assert private.read_bytes() == b"2"


@pytest.mark.skipif(os.name == "nt", reason="links are POSIX's")
def test_links_are_not_replaced_by_a_result_of_several_files(tmp_path) -> None:
    """The folder itself may be a link, whose target is then written to."""
    real, out = tmp_path / "real", tmp_path / "out"
    real.mkdir()
    out.symlink_to(real)
    with staged(out) as stage:
        (stage / "model.bin").write_bytes(b"1")
    assert out.is_symlink()
    assert (real / "model.bin").read_bytes() == b"1"
    (tmp_path / "elsewhere").write_bytes(b"old")
    (real / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FolderUnusable, match="is a link"), staged(out) as stage:
        (stage / "linked").write_bytes(b"2")
    assert (real / "linked").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"old"
    assert {path.name: path.read_bytes() for path in real.iterdir()} == {"model.bin": b"1", "linked": b"old"}


@pytest.mark.parametrize("saved", [{}, {"code": "bundle"}, {"is_main_process": False}], ids=str)
@pytest.mark.parametrize("below", ["", "folder"])
def test_a_patched_model_is_not_saved_in_the_place_of_a_file(saved, below, tmp_path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(FolderUnusable):
        patch_model(tiny_model("llama"), "yarn", factor=2).save_pretrained(file / below, **saved)
    tiny_model("llama").save_pretrained(file)  # control: transformers alone logs an error and returns
    assert file.read_text() == "mine"


def test_a_read_only_folder_is_refused_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)  # root may write everywhere
    with pytest.raises(FolderUnusable, match="read-only"):
        patch_model(tiny_model("llama"), "yarn", factor=2).save_pretrained(tmp_path / "new")
    assert not any(tmp_path.iterdir())
