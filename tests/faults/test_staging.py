"""Results of several files are replaced all at once; other files stay."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest
import torch

from hf_posenc.core.files.staged import (
    HIDDEN_PREFIX,
    move_in,
    staged,
)

from .programs import loaded_logits, patched


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


def test_a_failure_while_moving_puts_everything_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 5):
        new, folder = tmp_path / f"new{number}", tmp_path / f"folder{number}"
        for one in (new, folder):
            one.mkdir()
            for name in ("config.json", "a"):
                (one / name).write_text(one.name)
        left, replace = [number], os.replace

        def failing(source: Path, target: Path, left: list[int] = left, replace=replace) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.EIO, "I/O error")
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", failing)
            with pytest.raises(OSError, match="I/O"):
                move_in(new, folder)
        assert {p.name: p.read_text() for p in folder.iterdir()} == {"config.json": folder.name, "a": folder.name}
        assert not list(folder.glob(HIDDEN_PREFIX + "*"))


def test_shards_replace_a_single_file_and_the_other_way_round(tmp_path: Path) -> None:
    for which, size in ((0, "5GB"), (1, "8KB"), (0, "5GB")):
        patched(which).save_pretrained(tmp_path, max_shard_size=size)
        with torch.no_grad():
            expected = patched(which)(torch.arange(3, 23)[None]).logits
        assert torch.equal(loaded_logits(tmp_path), expected), f"result {which} in shards of {size}"


FILES = ("adapter_config.json", "config.json", "model.safetensors")


class InterruptAt:
    """Raise KeyboardInterrupt before the given bytecodes of `move_in` are run, counted from its first."""

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.count = numbers, 0

    def __call__(self, frame: FrameType, event: str, _: object) -> InterruptAt | None:
        if frame.f_code is not move_in.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count in self.numbers:
                raise KeyboardInterrupt
        return self


def interrupted_save(folder: Path, *numbers: int) -> tuple[dict[str, str], set[str], int]:
    """Files in place, contents anywhere below the folder, and bytecodes run, of a save that is interrupted there."""
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(f"old {name}")
    trace = InterruptAt(*numbers)
    with suppress(KeyboardInterrupt), staged(folder) as stage:
        for name in FILES:
            (stage / name).write_text(f"new {name}")
        sys.settrace(trace)
        try:
            move_in(stage, folder)
        finally:
            sys.settrace(None)
    there = {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}
    return there, {file.read_text() for file in folder.rglob("*") if file.is_file()}, trace.count


def test_an_interrupt_anywhere_leaves_the_old_files_or_the_new(tmp_path: Path) -> None:
    old, new = ({name: f"{age} {name}" for name in FILES} for age in ("old", "new"))
    there, _, steps = interrupted_save(tmp_path / "whole")
    assert there == new
    for step in range(1, steps + 1):
        there, _, _ = interrupted_save(tmp_path / str(step), step)
        assert there in (old, new), f"interrupted before bytecode {step} of {steps}"
