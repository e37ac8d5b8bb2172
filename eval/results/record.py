"""Record of one measured cell, and the digests that identify it.

key = SHA-256 of every setting that a number depends on        a changed setting gives another key
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["done", "refused", "failed"]


@dataclass(frozen=True)
class Record:
    """Outcome of one cell.

    Attributes:
        key: digest of its settings.
        scheme, task: label of the entry, and lm-eval task.
        length: in tokens; None for a task without a length sweep.
        state: ``"done"``; ``"refused"``, which is final; or ``"failed"``, which the next run tries again.
        reason: why it was refused or failed.
        rows: numbers, as in `Row.to_dict`.
        seconds: duration of the measurement.
        settings: everything that `key` is computed from.
        documents: scores of single documents, as in `DocumentScore.to_dict`; none in records of earlier versions.
        remarks: what a reader must know of this cell.
    """

    key: str
    scheme: str
    task: str
    length: int | None
    state: State
    reason: str
    rows: list[dict[str, Any]]
    seconds: float
    settings: dict[str, Any]
    documents: list[dict[str, Any]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def key_of(settings: Mapping[str, Any]) -> str:
    """Compute the key of a cell: equal for equal settings only."""
    return hashlib.sha256(canonical(settings).encode()).hexdigest()


def row_digest(values: list[Any]) -> str:
    """Compute the digest of a row's values."""
    return hashlib.sha256(canonical(values).encode()).hexdigest()


def is_intact(values: list[Any], digest: Any) -> bool:
    """Whether a row has the digest it was written with; values without a JSON form never were written."""
    try:
        return bool(row_digest(values) == digest)
    except (TypeError, ValueError):
        return False


def canonical(value: Any) -> str:
    """Encode as canonical JSON: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
