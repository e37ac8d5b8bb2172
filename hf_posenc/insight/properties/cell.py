"""One answer: yes, no or that the question does not arise; always with the number behind it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A property of a scheme, measured.

    Attributes:
        holds: whether it has the property; None where the question does not arise, or is not one of yes and no.
        value: the number that decided; None where the question does not arise.
        says: what the number is; or why the question does not arise.
        note: a few words that belong to the answer, such as ``affine``.
        more: further numbers by name.
    """

    holds: bool | None
    value: float | None
    says: str
    note: str = ""
    more: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.value is None:
            return "—"
        answer = "" if self.holds is None else "yes " if self.holds else "no "
        return f"{answer}{self.value:.2g}" + (f" ({self.note})" if self.note else "")

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; a number that is none is written as text."""
        return asdict(self) | {"value": finite(self.value), "more": {k: finite(v) for k, v in self.more.items()}}


def finite(number: float | None) -> float | str | None:
    """The number, or what JSON has for one that is infinite: its name."""
    return number if number is None or isfinite(number) else str(number)


def not_asked(reason: str) -> Cell:
    """A cell of a property that says nothing about this scheme."""
    return Cell(None, None, reason)
