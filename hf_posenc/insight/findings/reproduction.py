"""The result of a finding: its judged claims, its verdict, the means of its cells, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.eval.results.documents import standard_error
from hf_posenc.insight.findings.cells import LARGEST, FindingCell, load_cell
from hf_posenc.insight.findings.claims import Metric, claim_of, claim_to_dict, in_words
from hf_posenc.insight.findings.finding import Finding
from hf_posenc.insight.findings.verdict import Judged, Verdict, judge, verdict_on

FORMAT = 1
RESULT = "finding.json"
CELLS = "cells"


@dataclass(frozen=True)
class Mean:
    """Mean score of a variant at a point, over documents and seeds, with its error over clusters of documents."""

    variant: str
    at: float
    metric: str
    mean: float
    stderr: float | None
    documents: int
    clusters: int
    seeds: int


@dataclass(frozen=True)
class Reproduction:
    """A finding with what was measured.

    Attributes:
        finding: what was run.
        quick: whether the smaller budget was.
        model, text: what it ran on, by name.
        cells: raw scores.
        judged: its claims, in order.
        needed: the abilities that they need.
        files: names of the files of the cells.
        settings: shared by all cells.
        command: that makes it again.
    """

    finding: Finding
    quick: bool
    model: str | None
    text: str | list[str] | None
    cells: Sequence[FindingCell]
    judged: Sequence[Judged]
    needed: Sequence[Judged]
    files: Sequence[str]
    settings: Mapping[str, Any]
    command: str

    @property
    def verdict(self) -> Verdict:
        """What the claims say together."""
        return verdict_on(self.judged, self.needed)

    @property
    def seconds(self) -> float:
        """Time that the measurement of all cells took, whenever they were measured."""
        return sum(cell.seconds for cell in self.cells)

    @property
    def cpu_seconds(self) -> float:
        """Time of all cores together that the measurement of all cells took."""
        return sum(cell.cpu_seconds for cell in self.cells)

    @property
    def budget(self) -> str:
        """``"full"``, or ``"quick"``, which every output says."""
        return "quick" if self.quick else "full"

    def means(self, metric: Metric) -> list[Mean]:
        """Mean scores of one metric, by variant and point."""
        slots = dict.fromkeys((cell.variant, cell.at) for cell in self.cells if metric.name in cell.scores)
        return [mean_of([c for c in self.cells if (c.variant, c.at) == slot], metric.name) for slot in slots]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for ``finding.json``."""
        finding, budget = self.finding, self.finding.budget(self.quick)
        return {
            "format": FORMAT, "name": finding.name, "claim": finding.claim, "source": finding.source,
            "against": finding.against, "limits": finding.limits, "verdict": self.verdict, "budget": self.budget,
            "claims": self.shown(self.judged), "needs": self.shown(self.needed),
            "metrics": [vars(metric) for metric in finding.metrics],
            "means": [vars(mean) for metric in finding.metrics for mean in self.means(metric)],
            "axis": finding.axis, "variants": dict(finding.variants), "seeds": list(budget.seeds),
            "options": dict(budget.options), "model": self.model, "text": self.text, "settings": dict(self.settings),
            "cells": list(self.files), "seconds": self.seconds, "cpu_seconds": self.cpu_seconds,
            "command": self.command,
        }  # fmt: skip

    def shown(self, judged: Sequence[Judged]) -> list[dict[str, Any]]:
        """Claims in words and as values, with what was found."""
        form = self.finding.point_format
        return [{"says": in_words(j.claim, form), "claim": claim_to_dict(j.claim), **j.to_dict()} for j in judged]

    def save(self, folder: Path) -> None:
        """Write ``finding.json`` atomically."""
        write_json(folder / RESULT, self.to_dict())


def mean_of(cells: Sequence[FindingCell], metric: str) -> Mean:
    """The mean of the cells of one variant at one point, which differ in their seed."""
    rows = [{score.document: score for score in cell.scores[metric]} for cell in cells]
    names = sorted(set.intersection(*map(set, rows)))
    values = [fmean(row[name].value for row in rows) for name in names]
    error, clusters = standard_error(values, [rows[0][name].cluster for name in names])
    return Mean(cells[0].variant, cells[0].at, metric, fmean(values), error, len(names), clusters, len(cells))


def verdict_of(folder: str | Path) -> tuple[Verdict, list[Judged]]:
    """Derive the verdict on a finding again, from the claims and the raw cells in its folder alone.

    Raises:
        StoreChanged: a cell was changed since it was written.
        OSError: a file is missing.
    """
    content = read_object(Path(folder) / RESULT, LARGEST)
    claims, needs = ([claim_of(one["claim"]) for one in content[part]] for part in ("claims", "needs"))
    metrics = [Metric(**metric) for metric in content["metrics"]]
    cells = [load_cell(Path(folder) / CELLS / name) for name in content["cells"]]
    judged = judge(claims, metrics, cells)
    return verdict_on(judged, judge(needs, metrics, cells)), judged
