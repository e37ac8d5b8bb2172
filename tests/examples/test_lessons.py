"""Lessons and findings run, and check their own conclusions; a lesson is shown to be able to fail."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import tiny_model

FOLDER = Path(__file__).parents[2] / "examples" / "lessons"
HEAVY = {"window", "families", "grid"}  # seconds each


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(file.stem, marks=pytest.mark.slow if file.stem in HEAVY else ())
        for file in sorted(FOLDER.glob("*.py"))
        if file.stem != "lesson"
    ],
)
def test_a_lesson_runs_and_its_conclusion_holds(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    title = (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()[0]
    runpy.run_path(str(FOLDER / f"{name}.py"))
    assert title.endswith("?")
    assert capsys.readouterr().out


def test_a_lesson_fails_where_no_scheme_has_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: every scheme is replaced by none."""
    import lesson

    monkeypatch.setattr(lesson, "patched", lambda model, scheme: patch_model(tiny_model("bert"), "none"))
    monkeypatch.setattr(sys, "argv", ["dog"])
    with pytest.raises(AssertionError):
        runpy.run_path(str(FOLDER / "dog.py"))


FINDINGS = Path(__file__).parents[2] / "examples" / "findings"
NAMES = sorted(file.stem for file in FINDINGS.glob("*.py") if file.stem != "verdict")


QUICKEST = ("attention_fading", "lost_in_the_middle", "nope_length", "streaming_cliff")  # one of each kind


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [one if one in QUICKEST else pytest.param(one, marks=pytest.mark.full) for one in NAMES]
)
def test_the_quick_form_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, FINDINGS / f"{name}.py", "--quick", "--out", tmp_path / "finding.json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Verdict: " in run.stdout
    assert json.loads((tmp_path / "finding.json").read_text())["quick"]
