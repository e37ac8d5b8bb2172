"""Real faults in separate processes: killed, interrupted, disk full, out of memory, two at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .programs import end, environment, start, write_model

pytest.importorskip("lm_eval", reason="comparisons need the extra `eval`")
pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
pytest.importorskip("matplotlib", reason="plots need the extra `plot`")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="fork, signals and limits are POSIX's"),
]

HARNESS = Path(__file__).parent / "harness.py"
# What the GNU allocator has kept of freed memory needs no new address space, so a limit on that may not bite.
NO_HOARD = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
Found = dict[str, Any]


def played(folder: Path, *scenarios: str) -> Found:
    """What came of each scenario."""
    write_model(folder / "model")
    lines = (f"Line {i} says {i * i % 97} and nothing else.\n" for i in range(6000))
    (folder / "text.txt").write_text("".join(lines))
    code, out, err = end(start([HARNESS, folder, *scenarios], env=environment(**NO_HOARD)))
    assert code == 0, err[-3000:]
    found: Found = {}
    for line in out.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    for name, one in found.items():
        assert not (isinstance(one, dict) and "crashed" in one), f"{name}: {one['crashed']}"
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return played(
        tmp_path_factory.mktemp("faults"),
        *("kills=3", f"stopped={signal.SIGINT:d}", f"stopped={signal.SIGTERM:d}", "impatient", "full", "read_only"),
        *(f"stopped_tuning={signal.SIGTERM:d}", "filling", "two_writers", "memory", "odd"),
    )


def plain(err: str) -> str:
    """The one error of a command, in sentences and without a traceback."""
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, err
    assert errors[0].count(". ") >= 1 or "; resume with" in errors[0], "what happened, and what to do"
    return errors[0]


def check_kills(rounds: list[Found], count: int) -> None:
    assert len(rounds) == count
    for one in rounds:
        assert one["second"] == 0
        assert one["measured again"] == 0
        assert one["same"], "results are those of an uninterrupted run, byte for byte"
        assert one["stray"] == []
    assert any(one["first"] == -signal.SIGKILL for one in rounds), "control: somebody was killed"


def test_killed_while_comparing(found: Found) -> None:
    check_kills(found["kills=3"], 3)


@pytest.mark.full
def test_kill_9_while_comparing_at_thirty_moments(tmp_path: Path) -> None:
    rounds = played(tmp_path, "kills=30")["kills=30"]
    check_kills(rounds, 30)
    assert {one["kept"] for one in rounds} >= {0, 3}, "control: before the first cell, and in the middle"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_comparing(found: Found, number: int, code: int) -> None:
    first, second, stray, again, kept = found[f"stopped={number:d}"]
    assert first["code"] == code
    assert "resume with: hf-posenc compare --model" in plain(first["err"])
    assert stray == []
    assert second["code"] == 0
    assert kept >= 1
    assert again == 0


def test_a_second_interrupt_ends_at_once(found: Found) -> None:
    """The answer to the first takes longer than the harness waits before it kills."""
    ended = found["impatient"]
    assert ended["code"] == 130
    assert "Traceback" not in ended["err"]


def test_a_signal_while_fine_tuning(found: Found) -> None:
    first, second, deviation, half = found[f"stopped_tuning={signal.SIGTERM:d}"]
    assert first["code"] == 143
    assert plain(first["err"]).endswith("--resume")
    assert "curve.json" not in half
    assert second["code"] == 0
    assert deviation <= 1e-6


@pytest.mark.parametrize("command", ["compare", "finetune", "eval", "export", "show", "probe"])
def test_no_file_has_room(found: Found, command: str) -> None:
    one = found["full"][command]
    assert one["code"] == 1
    assert "space" in plain(one["err"]) or "disk" in plain(one["err"])
    checkpoints = ["checkpoint-2", "run.json"]  # `Trainer`'s own, passed over because it has no manifest
    assert [name for name in one["left"] if name not in checkpoints] == []


@pytest.mark.parametrize("command", ["compare", "finetune", "show", "export"])
@pytest.mark.parametrize("path", ["a file", "read only"])
def test_a_folder_without_write_permission(found: Found, command: str, path: str) -> None:
    one = found["read_only"].get(f"{command}: {path}")
    if one is None:
        pytest.skip("only root can mount a file system for reading")
    assert one["code"] in (1, 2)
    assert "folder" in plain(one["err"]) or "Choose another" in plain(one["err"])


def test_a_disk_that_fills_up(found: Found) -> None:
    if found["filling"] is None:
        pytest.skip("only root can mount a small disk")
    first, left, kept, again, second, after = found["filling"]
    assert first["code"] == 1
    assert "No space left on device" in plain(first["err"])
    assert left == ["run", "run/cells.sqlite"]
    assert kept > 0
    assert again == 0
    assert second["code"] == 0
    assert [Path(path).name for path in after[1:]] == [
        "cells.sqlite", "documents.jsonl", "page.html", "results.csv", "results.json", "results.md",
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["loop", "store a folder", "garbage", "cut"])
def test_a_path_that_is_something_else(found: Found, path: str) -> None:
    """A link to itself, a folder or another program's bytes where the store should be: left as it was."""
    one = found["odd"][path]
    assert one["code"] == 1
    assert re.search("hoose another|[Mm]ove (it|the file) away", plain(one["err"]))
    assert one["after"] == one["before"]


def test_a_folder_where_a_result_should_be(found: Found) -> None:
    one = found["odd"]["results a folder"]
    assert one["code"] == 1
    assert "every finished cell is kept" in plain(one["err"])
    assert one["after"] == ["cells.sqlite", "results.json"]


def test_a_removed_folder(found: Found) -> None:
    one = found["odd"]["removed"]
    assert one["code"] == 1
    assert "deleted or replaced" in plain(one["err"])


@pytest.mark.parametrize("lack", ["no temporary folder", "few files", "mute", "deaf"])
def test_what_a_comparison_can_do_without(found: Found, lack: str) -> None:
    """A place for temporary files, more than 32 open ones, standard error, standard input."""
    one = found["odd"][lack]
    assert one["code"] == 0, one["err"]
    assert one["after"] == [
        "cells.sqlite", "documents.jsonl", "page.html", "results.csv", "results.json", "results.md",
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["compare", "finetune"])
def test_two_at_once(found: Found, command: str) -> None:
    """The first one succeeds, the second gets an error; no cell is lost, and none measured by both."""
    first, second = found["two_writers"][command]
    assert first["code"] == 0
    assert second["code"] == 1
    assert "another" in plain(second["err"]).lower()
    assert found["two_writers"]["cells"] == 6


def test_one_cell_has_no_memory(found: Found) -> None:
    answer, cells = found["memory"]
    assert answer["code"] == 1
    assert "Traceback" not in answer["err"]
    assert [(cell["length"], cell["state"]) for cell in cells] == [(256, "done"), (512, "done"), (65536, "failed")]
    assert cells[2]["reason"].startswith("Out of memory at 65536 tokens")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_standard_output_is_full() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hf_posenc.cli", "list"], stdout=full, stderr=subprocess.PIPE, text=True,
            check=False, env=environment(),
        )  # fmt: skip
    assert done.returncode not in (0, -signal.SIGABRT)
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr


def test_closed_standard_output() -> None:
    """As with ``| head -1``."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hf_posenc.cli", "list"], stdout=write_end, stderr=subprocess.PIPE, text=True,
            check=False, env=environment(),
        )  # fmt: skip
    finally:
        os.close(write_end)
    assert done.stderr == ""


@pytest.mark.parametrize("home", [None, "/proc/nowhere"], ids=["unset", "unwritable"])
def test_without_a_home(home: str | None, tmp_path: Path) -> None:
    """Neither a home nor a cache that could be written to: a plot and a check of a starter need none."""
    kept = {name: value for name, value in environment().items() if name not in ("HOME", "XDG_CACHE_HOME")}
    if home is not None:
        kept |= {"HOME": home, "HF_HOME": f"{home}/hf", "XDG_CACHE_HOME": f"{home}/cache"}
    words = ["show", "alibi", "--picture", "bias", "--out", str(tmp_path / "a.png")]
    code, _, err = end(start(["-m", "hf_posenc.cli", *words], env=kept))
    assert code == 0, err
    assert (tmp_path / "a.png").stat().st_size > 1000
