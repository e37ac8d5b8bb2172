"""Results of several files are replaced all at once; other files stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hf_posenc.core.files.staged import move_in, staged


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
