"""Result of a check: the largest deviation from what is required, its location, and the command to reproduce it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Deviation:
    """Largest deviation that a check measured for a case.

    Compares by value with numbers and other deviations: ``assert deviation <= case.tolerance("cache"), deviation``.

    Attributes:
        check: name of the check.
        value: the largest deviation, in units of the check; NaN if a result was not finite.
        tolerance: the largest value that counts as rounding.
        where: location of the largest deviation, in words.
        command: shell command that measures it again.
        traceback: of what the check raised; empty where it measured a value.
    """

    check: str
    value: float
    tolerance: float
    where: str
    command: str
    traceback: str = field(default="", repr=False, compare=False)

    @property
    def failed(self) -> bool:
        """Whether the value exceeds the tolerance; NaN always fails."""
        return not self.value <= self.tolerance

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
            f"{self.check} {verdict}: deviation {self.value:.2g}, tolerance {self.tolerance:.2g}, at {self.where}\n"
            f"  measure again: {self.command}"
        )
