"""Raw cells of a finding: scores of single documents of one variant at one point with one seed, one JSON file each.

A cell is known by the digest of every setting that its numbers depend on. So an interrupted run goes on where it
stopped, an edited setting is measured again, and a verdict can be derived from the files alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.core.files.slug import slug
from hf_posenc.eval.errors import StoreChanged
from hf_posenc.eval.results.record import key_of, row_digest

FORMAT = 1
LARGEST = 64 << 20  # bytes of the file of one cell


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
        seconds, cpu_seconds: that the measurement took, by the clock and of all cores together.
        settings: everything that the numbers depend on.
    """

    variant: str
    at: float
    seed: int
    scores: Scores
    seconds: float
    cpu_seconds: float
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Digest of the settings."""
        return key_of(self.settings)


def file_of(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Where the cell with these settings is stored."""
    name = slug(f"{settings['variant']}_{settings['at']:g}_{settings['seed']}"[:48])
    return folder / f"{name}_{key_of(settings)[:12]}.json"


def save_cell(folder: Path, cell: FindingCell) -> Path:
    """Write a cell atomically; when this returns, it is on disk."""
    file = file_of(folder, cell.settings)
    scores = {metric: [list(score) for score in found] for metric, found in cell.scores.items()}
    write_json(
        file,
        {
            "format": FORMAT, "key": cell.key, "seconds": cell.seconds, "cpu_seconds": cell.cpu_seconds,
            "settings": dict(cell.settings), "scores": scores, "digest": row_digest([cell.key, scores]),
        },
    )  # fmt: skip
    return file


def load_cell(file: Path) -> FindingCell:
    """Read a cell.

    Raises:
        StoreChanged: the file is damaged, or was changed by another program.
    """
    try:
        content = read_object(file, LARGEST)
        settings, scores = content["settings"], content["scores"]
        if content["key"] != key_of(settings) or content["digest"] != row_digest([content["key"], scores]):
            raise ValueError("its digest does not fit")
        found = {metric: tuple(DocumentScore(*score) for score in some) for metric, some in scores.items()}
        spent = content["seconds"], content["cpu_seconds"]
        return FindingCell(settings["variant"], settings["at"], settings["seed"], found, *spent, settings)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreChanged(
            f"The cell {file} was changed since it was written ({error}). Restore the file, or delete it to measure it "
            "again."
        ) from error
