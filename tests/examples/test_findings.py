"""Each finding runs in its quick form, and is one that the page tells of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "findings"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "verdict")


QUICKEST = ("attention_fading", "lost_in_the_middle", "nope_length", "streaming_cliff")  # one of each kind


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [one if one in QUICKEST else pytest.param(one, marks=pytest.mark.full) for one in NAMES]
)
def test_the_quick_form_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, FOLDER / f"{name}.py", "--quick", "--out", tmp_path / "finding.json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Verdict: " in run.stdout
    assert json.loads((tmp_path / "finding.json").read_text())["quick"]
