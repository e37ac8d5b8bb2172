"""What a law measures: how far two things that must agree are apart, where, and how to see it again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gap:
    """How far a pair of scheme and model is from obeying a law.

    Compares with numbers, and with other gaps, by its value: ``assert gap <= pair.limit("cache"), gap``.

    Attributes:
        law: name of the law.
        value: the largest deviation, in units of the law; not a number where a result was not finite.
        limit: the largest deviation that is rounding.
        where: the worst place, in words.
        repeat: the command that measures it again.
    """

    law: str
    value: float
    limit: float
    where: str
    repeat: str

    @property
    def broken(self) -> bool:
        """Whether the law does not hold; a value that is no number breaks every law."""
        return not self.value <= self.limit

    def __float__(self) -> float:
        return self.value

    def __lt__(self, other: Gap | float) -> bool:
        return self.value < float(other)

    def __le__(self, other: Gap | float) -> bool:
        return self.value <= float(other)

    def __gt__(self, other: Gap | float) -> bool:
        return self.value > float(other)

    def __ge__(self, other: Gap | float) -> bool:
        return self.value >= float(other)

    def __str__(self) -> str:
        verdict = "broken" if self.broken else "holds"
        return (
            f"{self.law} {verdict}: {self.value:.2g}, limit {self.limit:.2g}, at {self.where}\n  again: {self.repeat}"
        )
