"""Raw cells of a finding: scores of single documents of one variant at one point with one seed, one JSON file each.

A cell is known by its settings: an interrupted run goes on where it stopped, and an edited setting is measured again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hf_posenc.core.files.atomic import write_json


class DocumentScore(NamedTuple):
    """One metric of one document; documents that are not independent of each other share a cluster."""

    document: str
    cluster: str
    value: float


Scores = Mapping[str, Sequence[DocumentScore]]
"""Scores of documents by the name of the metric."""


@dataclass(frozen=True)
class FindingCell:
    """What was measured of one variant at one point with one seed.

    Attributes:
        variant: label.
        at: point of the finding's axis.
        seed: random seed of what the finding draws anew for each seed, such as initial weights.
        scores: of single documents, by metric; all cells of one finding that are compared have the same documents.
        cpu_seconds: that the measurement took, of all cores together.
        settings: everything that the numbers depend on.
    """

    variant: str
    at: float
    seed: int
    scores: Scores
    cpu_seconds: float
    settings: Mapping[str, Any]


def file_of(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Where the cell with these settings is stored."""
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return folder / f"{settings['variant']}_{settings['at']:g}_{settings['seed']}_{key[:12]}.json"


def save_cell(folder: Path, cell: FindingCell) -> None:
    """Write a cell atomically; when this returns, it is on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    scores = {metric: [list(score) for score in found] for metric, found in cell.scores.items()}
    write_json(file_of(folder, cell.settings), {**vars(cell), "scores": scores})


def load_cell(file: Path) -> FindingCell:
    """Read a cell."""
    content = json.loads(file.read_text(encoding="utf-8"))
    scores = {metric: [DocumentScore(*score) for score in some] for metric, some in content.pop("scores").items()}
    return FindingCell(**content, scores=scores)
