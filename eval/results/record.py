"""Record of one measured cell, its key, and what its measurement cost.

key = SHA-256 of every setting that a number depends on        a changed setting gives another key
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["done", "refused", "failed"]


@dataclass(frozen=True)
class Costs:
    """Costs of one cell, besides its time, which its record has; or the largest of several cells.

    Attributes:
        peak_memory: bytes; None where it cannot be measured.
        memory_of: whose memory that is: ``"process"``, weights and libraries included, or the device's name.
        cache_per_token: bytes of the KV cache for each token it holds; None for a model without one.
    """

    peak_memory: int | None
    memory_of: str
    cache_per_token: float | None


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
        documents: scores of single documents, as in `DocumentScore.to_dict`.
        remarks: what a reader must know of this cell.
        costs: of its measurement; None where it was not finished. They differ from run to run, as ``seconds`` do.
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
    costs: Costs | None = None


def key_of(settings: Mapping[str, Any]) -> str:
    """Compute the key of a cell: equal for equal settings only."""
    return hashlib.sha256(canonical(settings).encode()).hexdigest()


def canonical(value: Any) -> str:
    """Encode as canonical JSON: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def costs_of(records: Sequence[Record]) -> Costs:
    """The largest costs of records."""
    known = [record.costs for record in records if record.costs is not None]
    return Costs(
        max((one.peak_memory for one in known if one.peak_memory is not None), default=None),
        ", ".join(dict.fromkeys(one.memory_of for one in known if one.peak_memory is not None)),
        max((one.cache_per_token for one in known if one.cache_per_token is not None), default=None),
    )
