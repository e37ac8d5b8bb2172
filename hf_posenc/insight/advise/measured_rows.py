"""Measured evidence: loss and passkey retrieval of schemes on a bundled model, past its trained length.

``python docs/make_evidence.py`` makes ``measured.json`` from ranked comparisons at 4 and 8 times the trained length.
`hf_posenc.advise`, docs/choose.md and the README read it, so that all three recommend the same. Every row has the
command that measures it again.

The order has one rule. A scheme is placed by the best place it can have in passkey retrieval, given which differences
between schemes are sure, then by that in loss, then by the mean loss to two digits, then by the time of a prefill: a
loss alone does not show what was forgotten, and places alone do not order what is tied.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("measured.json")


@dataclass(frozen=True)
class MeasuredScore:
    """A score at the longest measured length.

    Attributes:
        value: mean over documents.
        low, high: 95 % interval.
        at_trained: the same scheme with the same factor at the trained length.
        n: documents.
        first: the best place that is possible among the lines that were compared: 1 plus those that are surely better.
        command: measures it again.
    """

    value: float
    low: float
    high: float
    at_trained: float
    n: int
    first: int
    command: str


@dataclass(frozen=True)
class MeasuredRow:
    """A scheme on a model, without training, with the options that a comparison gives it.

    Attributes:
        model: its name.
        trained_length, length: tokens.
        scheme: a name; ``unpatched`` for the model as it is.
        loss: cross-entropy loss of the same last tokens, nats/token.
        passkeys: share of passkeys found.
        prefill, decode: time over that of the unpatched model; None where it was not measured.
        finds: whether more than half of the passkeys are found, and surely more than by the unpatched model.
    """

    model: str
    trained_length: int
    length: int
    scheme: str
    loss: MeasuredScore
    passkeys: MeasuredScore
    prefill: float | None
    decode: float | None
    finds: bool

    @property
    def factor(self) -> float:
        """Length over trained length: the factor of the patch."""
        return self.length / self.trained_length

    @property
    def order(self) -> tuple[int, int, float, float]:
        """Sort key, smaller is better."""
        return self.passkeys.first, self.loss.first, round(self.loss.value, 2), self.prefill or 0.0

    def __str__(self) -> str:
        return (
            f"measured at {self.factor:g} × on {self.model}: loss {self.loss.value:.2f}, "
            f"{100 * self.passkeys.value:.0f} % of passkeys"
        )


@lru_cache(maxsize=1)
def measured_rows() -> tuple[MeasuredRow, ...]:
    """All rows, by factor, then best first; the unpatched model is among them."""
    found = [row_of(content) for content in json.loads(FILE.read_text(encoding="utf-8"))["rows"]]
    return tuple(sorted(found, key=lambda row: (row.factor, row.order)))


def measured_for(factor: float) -> dict[str, MeasuredRow]:
    """The row of every scheme that says most of a factor: the next larger one that was measured, or the largest."""
    found: dict[str, MeasuredRow] = {}
    for row in measured_rows():
        if row.scheme not in found or found[row.scheme].factor < factor:
            found[row.scheme] = row
    return found


def measured_at(factor: float) -> list[MeasuredRow]:
    """The rows of one factor, best first."""
    return [row for row in measured_rows() if row.factor == factor]


def row_of(content: dict[str, Any]) -> MeasuredRow:
    """A row from plain values."""
    scores = {name: MeasuredScore(**content[name]) for name in ("loss", "passkeys")}
    return MeasuredRow(**{**content, **scores})
