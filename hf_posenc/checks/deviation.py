"""What a check measures: how far two things that must agree are apart, where, and how to see it again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Deviation:
    """How far a pair of scheme and model is from obeying a check.

    Compares with numbers, and with other gaps, by its value: ``assert gap <= pair.limit("cache"), gap``.

    Attributes:
        check: name of the check.
        value: the largest deviation, in units of the check; not a number where a result was not finite.
        limit: the largest deviation that is rounding.
        where: the worst place, in words.
        repeat: the command that measures it again.
    """

    check: str
    value: float
    limit: float
    where: str
    repeat: str

    @property
    def failed(self) -> bool:
        """Whether the check does not hold; a value that is no number breaks every check."""
        return not self.value <= self.limit

    def __float__(self) -> float:
        return self.value

    def __lt__(self, other: Deviation | float) -> bool:
        return self.value < float(other)

    def __le__(self, other: Deviation | float) -> bool:
        return self.value <= float(other)

    def __gt__(self, other: Deviation | float) -> bool:
        return self.value > float(other)

    def __ge__(self, other: Deviation | float) -> bool:
        return self.value >= float(other)

    def __str__(self) -> str:
        verdict = "failed" if self.failed else "passed"
        return (
            f"{self.check} {verdict}: {self.value:.2g}, limit {self.limit:.2g}, at {self.where}\n  again: {self.repeat}"
        )
