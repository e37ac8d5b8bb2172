"""Result of one property for one scheme: yes, no or not applicable, with the number that decides it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any


@dataclass(frozen=True)
class PropertyValue:
    """Measured property of a scheme.

    Attributes:
        holds: whether the scheme has the property; None where it is not applicable or not a yes/no question.
        value: the number that decides; None where the property is not applicable.
        explanation: what the number is, or why the property is not applicable.
        note: addition to the answer, such as ``affine``.
        more: further numbers by name.
        number: format of the number that names it, such as ``least difference {:.2g}``; by default the property's own.
    """

    holds: bool | None
    value: float | None
    explanation: str
    note: str = ""
    more: dict[str, float] = field(default_factory=dict)
    number: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return "—"
        answer = f"{self.answer}: " if self.answer else ""
        return answer + (self.number or "{:.2g}").format(self.value) + (f" ({self.note})" if self.note else "")

    @property
    def answer(self) -> str:
        """``yes`` or ``no``, ``—`` where the property is not applicable; empty where it is no yes/no question."""
        if self.value is None:
            return "—"
        return "" if self.holds is None else "yes" if self.holds else "no"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinite and NaN numbers are written as text."""
        return {
            "holds": self.holds, "value": finite(self.value), "says": self.explanation, "note": self.note,
            "more": {name: finite(value) for name, value in self.more.items()},
        }  # fmt: skip


def finite(number: float | None) -> float | str | None:
    """Return the number, or its name as text where it is infinite or NaN, which JSON lacks."""
    return number if number is None or isfinite(number) else str(number)


def not_applicable(reason: str) -> PropertyValue:
    """Build the cell of a property that does not apply to a scheme."""
    return PropertyValue(None, None, reason)
