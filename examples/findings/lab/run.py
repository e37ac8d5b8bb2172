"""Run a finding: measure the cells that are missing, judge its claims, print and write the result."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_json
from lab.cells import FindingCell, file_of, load_cell, save_cell
from lab.claims import claim_to_dict, in_words, signed
from lab.finding import Budget, Finding, Job
from lab.verdict import Judged, Verdict, judge, verdict_on

VERSIONS = {name: version(name) for name in ("hf-posenc", "torch", "transformers")}


def main(finding: Finding) -> None:
    """The command of a finding's script."""
    parser = argparse.ArgumentParser(description=finding.claim, epilog=finding.source)
    parser.add_argument("--quick", action="store_true", help="a smaller budget, too small for a verdict")
    parser.add_argument("--out", type=Path, help="folder of the results; default: results/findings/NAME")
    parser.add_argument("--model", default=finding.model, help="to run on; default: %(default)s")
    parser.add_argument("--seeds", type=int, help="trainings of each variant; default: the budget's")
    parser.add_argument("--samples", type=int, help="documents; default: the budget's")
    given = parser.parse_args()
    budget = finding.budget(given.quick)
    if given.seeds is not None:
        budget = replace(budget, seeds=tuple(range(given.seeds)))
    if given.samples is not None:
        budget = replace(budget, options={**budget.options, "samples": given.samples})
    folder = given.out or Path("results/findings-quick" if given.quick else "results/findings") / finding.name
    show(finding, *reproduce(finding, budget, folder, given.model))


def reproduce(finding: Finding, budget: Budget, folder: Path, model: str | None = None) -> tuple[Verdict, list[Judged]]:
    """Measure what is missing in ``folder/cells``, write ``finding.json``, and return the verdict and its claims."""
    cells = list(measured_cells(finding, budget, folder / "cells", model or finding.model or ""))
    needed, judged = (judge(claims, finding.metrics, cells) for claims in (finding.needs, finding.claims))
    verdict = verdict_on(judged, needed)
    shown = [
        [
            {"says": in_words(one.claim, finding.point_format), "claim": claim_to_dict(one.claim), **one.to_dict()}
            for one in some
        ]
        for some in (judged, needed)
    ]
    write_json(
        folder / "finding.json",
        {
            "name": finding.name, "verdict": verdict, "claims": shown[0], "needs": shown[1],
            "seeds": list(budget.seeds), "quick": budget == finding.quick, "model": model or finding.model,
            "cpu_seconds": sum(cell.cpu_seconds for cell in cells), "command": " ".join(["python", *sys.argv]),
            "versions": VERSIONS,
        },
    )  # fmt: skip
    return verdict, [*needed, *judged]


def measured_cells(finding: Finding, budget: Budget, folder: Path, model: str) -> Iterator[FindingCell]:
    """All cells; those without a file are measured first, and stored as soon as they are known."""
    axis = tuple(map(float, finding.points))
    for seed in budget.seeds:
        for variant, settings in finding.variants.items():
            job = Job(variant, settings, axis, axis, seed, budget.options, model, report)
            wanted = {at: settings_of(finding, job, at) for at in axis}
            job = replace(job, points=tuple(at for at in axis if not file_of(folder, wanted[at]).exists()))
            before = time.process_time()
            for at, scores in finding.measure(job) if job.points else ():
                now = time.process_time()
                save_cell(folder, FindingCell(variant, at, seed, scores, now - before, wanted[at]))
                before = now
            yield from (load_cell(file_of(folder, wanted[at])) for at in axis)


def settings_of(finding: Finding, job: Job, at: float) -> dict[str, Any]:
    """Everything that the numbers of one cell depend on."""
    return {
        "finding": finding.name, "variant": job.variant, "with": job.settings, "at": at, "axis": list(job.axis),
        "seed": job.seed, "options": job.options, "model": job.model, "versions": VERSIONS,
    }  # fmt: skip


def report(done: float, doing: str) -> None:
    """Show progress."""
    print(f"\r{done:4.0%} {doing:<60}", end="", file=sys.stderr)


def show(finding: Finding, verdict: Verdict, judged: Sequence[Judged]) -> None:
    """Print the claims with their intervals, and the verdict."""
    print(file=sys.stderr)
    for one in judged:
        interval = " … ".join(signed(bound) for bound in (one.low, one.high) if bound is not None)
        print(f"{in_words(one.claim, finding.point_format):<64} {signed(one.gain):>8}  {interval:<20} {one.outcome}")
    print(f"Verdict: {verdict}")
