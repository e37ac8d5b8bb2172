"""Order of renames in a save: a process killed between two of them leaves nothing that loads as a model.

Every rename is noted, and after each the folder is looked at as whoever finds it after a kill would.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.core.files import staged as staging
from hf_posenc.core.files.staged import move_in, staged, superseded_files

OLD = {"config.json": "old", "a.txt": "old", "model.safetensors": "old", "README.md": "old", "kept.txt": "kept"}
NEW = {
    "config.json": "new", "a.txt": "new", "z.txt": "new", "model-00001-of-00002.safetensors": "new",
    "model-00002-of-00002.safetensors": "new", "model.safetensors.index.json": "new", "curve.json": "new",
}  # fmt: skip


def written(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir() if p.is_file()}


@pytest.fixture
def states(tmp_path, monkeypatch) -> Iterator[list[dict[str, str]]]:
    """What the folder ``there`` holds after each rename."""
    seen: list[dict[str, str]] = []
    replace = os.replace

    def noted(source: Any, target: Any) -> None:
        replace(source, target)
        seen.append(content(tmp_path / "there"))

    monkeypatch.setattr(staging.os, "replace", noted)
    return seen


def moved(tmp_path: Path, **more: Any) -> dict[str, str]:
    folder = written(tmp_path / "there", OLD)
    move_in(written(tmp_path / "there" / ".work" / "new", NEW), folder, **more)
    return content(folder)


def test_old_and_new_files_are_never_loadable_together(tmp_path, states) -> None:
    after = moved(tmp_path, last=("curve.json",))
    assert after == {**NEW, "README.md": "old", "kept.txt": "kept"}  # a single old file of weights goes, too
    assert "config.json" not in states[0]  # the first to go
    for state in states:
        of_model = {name: value for name, value in state.items() if name not in ("README.md", "kept.txt")}
        if "config.json" in state:
            assert state["config.json"] == "new"
            assert {**of_model, "curve.json": "new"} == NEW
        assert state["kept.txt"] == "kept"
    assert "curve.json" not in states[-2]  # the last to come
    assert "config.json" not in states[-3]


def test_companions_are_removed_where_the_new_result_has_none(tmp_path) -> None:
    folder = written(tmp_path / "there", {**OLD, "beside.json": "old", "other.json": "old"})
    with staged(folder, companions=("beside.json",)) as stage:
        assert stage.name == "there"
        written(stage, {"config.json": "new"})
    assert content(folder) == {**OLD, "config.json": "new", "other.json": "old"}
    with staged(folder, companions=("other.json",)) as stage:
        written(stage, {"other.json": "new"})
    assert content(folder)["other.json"] == "new"


def test_only_weights_of_the_same_name_are_replaced(tmp_path) -> None:
    names = [
        "model.safetensors",
        "model-00003-of-00003.safetensors",
        "adapter_model.safetensors",
        "notes.txt",
        "x.json",
    ]
    written(tmp_path, dict.fromkeys(names, "old"))
    found = superseded_files([Path("model-00001-of-00002.safetensors")], tmp_path, ("x.json",))
    assert sorted(p.name for p in found) == ["model-00003-of-00003.safetensors", "model.safetensors", "x.json"]
    assert superseded_files([Path("config.json")], tmp_path, ()) == []
