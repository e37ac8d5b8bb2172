"""Real faults in separate processes: killed, interrupted, disk full, out of memory, two at once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from .programs import end, start, write_model

pytest.importorskip("lm_eval", reason="comparisons need the extra `eval`")
pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")
pytest.importorskip("matplotlib", reason="plots need the extra `plot`")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="fork, signals and limits are POSIX's"),
]

HARNESS = Path(__file__).parent / "harness.py"
Found = dict[str, Any]


def played(folder: Path, *scenarios: str) -> Found:
    """What came of each scenario."""
    write_model(folder / "model")
    lines = (f"Line {i} says {i * i % 97} and nothing else.\n" for i in range(6000))
    (folder / "text.txt").write_text("".join(lines))
    code, out, err = end(start([HARNESS, folder, *scenarios]))
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
        *("kills=3", "full", "two_writers", f"stopped_tuning={signal.SIGTERM:d}"),
    )


def plain(err: str) -> str:
    """The one error of a command, in sentences and without a traceback."""
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, err
    assert errors[0].count(". ") >= 1 or "; resume with" in errors[0], "what happened, and what to do"
    return errors[0]


def test_killed_while_comparing(found: Found) -> None:
    rounds = found["kills=3"]
    assert len(rounds) == 3
    for one in rounds:
        assert one["second"] == 0
        assert one["measured again"] == 0
        assert one["same"], "results are those of an uninterrupted run, byte for byte"
        assert one["stray"] == []
    assert any(one["first"] == -signal.SIGKILL for one in rounds), "control: somebody was killed"


def test_a_signal_while_fine_tuning(found: Found) -> None:
    first, second, deviation, half = found[f"stopped_tuning={signal.SIGTERM:d}"]
    assert first["code"] == 143
    assert plain(first["err"]).endswith("--resume")
    assert "curve.json" not in half
    assert second["code"] == 0
    assert deviation <= 1e-6


@pytest.mark.parametrize("command", ["compare", "finetune", "eval", "export"])
def test_no_file_has_room(found: Found, command: str) -> None:
    one = found["full"][command]
    assert one["code"] == 1
    assert "space" in plain(one["err"]) or "disk" in plain(one["err"])
    checkpoints = ["checkpoint-2", "run.json"]  # `Trainer`'s own, passed over because it has no manifest
    assert [name for name in one["left"] if name not in checkpoints] == []


@pytest.mark.parametrize("command", ["compare", "finetune"])
def test_two_at_once(found: Found, command: str) -> None:
    """The first one succeeds, the second gets an error; no cell is lost, and none measured by both."""
    first, second = found["two_writers"][command]
    assert first["code"] == 0
    assert second["code"] == 1
    assert "another" in plain(second["err"]).lower()
    assert found["two_writers"]["cells"] == 6
