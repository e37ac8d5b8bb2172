"""Each finding runs in its quick form, resumes where it stopped, and is the one that the page tells of."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from lab.cells import Scores
from lab.claims import Able, Metric, Order
from lab.finding import Budget, Job
from lab.from_scratch.measure import measure_cells
from lab.run import reproduce

FOLDER = Path(__file__).parents[2] / "examples" / "findings"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py"))
SIZE = {"trained": 4, "steps": 3, "batch": 2, "learning_rate": 1e-3, "width": 16, "layers": 1}
SMALL = replace(
    import_module("nope_length").FINDING,
    variants={"none": "none", "rope": "rope"},
    points=(1.0, 1.5),
    metrics=(Metric("copy", "share", higher_is_better=True),),
    claims=(Order("none", "rope", 1.5),),
    needs=(Able("none", 1.0, 0.75),),
    full=Budget((0, 1), {"tasks": {"copy": SIZE}, "scores": {"copy": ("copy", "tokens")}}),
)


@pytest.mark.slow  # a quarter of a minute each
@pytest.mark.parametrize("name", NAMES)
def test_the_quick_form_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, FOLDER / f"{name}.py", "--quick", "--out", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Verdict: " in run.stdout
    assert json.loads((tmp_path / "finding.json").read_text())["quick"]


def test_an_interrupted_run_ends_with_the_same_cells(tmp_path: Path) -> None:
    stops = [("rope", 1)]

    def stopping(job: Job) -> Iterator[tuple[float, Scores]]:
        for at, scores in measure_cells(job):
            if (job.variant, job.seed) in stops and at > 1.0:
                stops.clear()
                raise KeyboardInterrupt
            yield at, scores

    stopped = replace(SMALL, measure=stopping)
    verdict, judged = reproduce(SMALL, SMALL.full, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        reproduce(stopped, SMALL.full, tmp_path / "parts")
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "parts" / "cells").iterdir()}
    assert len(kept) == 3 * 2 + 1
    assert reproduce(stopped, SMALL.full, tmp_path / "parts") == (verdict, judged)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert verdict == "not decidable at this size"  # nothing is learned in three steps


def test_the_page_has_every_finding_with_its_verdict() -> None:
    docs = FOLDER.parents[1] / "docs"
    page, found = (docs / "findings.md").read_text(), json.loads((docs / "findings.json").read_text())
    for name in NAMES:
        assert f"`python examples/findings/{name}.py`" in page
        assert f"| {found[name]['verdict']} |" in page
