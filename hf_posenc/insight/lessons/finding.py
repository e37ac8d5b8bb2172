"""Result of a lesson: tables of measurements and a conclusion."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Value = str | float | int | bool | None


@dataclass(frozen=True)
class Table:
    """A table of values with column names.

    Attributes:
        columns: name and unit of each column.
        rows: one value per column.
        title: what the table is about, where there are several.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    title: str = ""

    def column(self, name: str) -> list[Value]:
        """The values under a head."""
        return [row[self.columns.index(name)] for row in self.rows]


@dataclass(frozen=True)
class LessonResult:
    """A lesson's result.

    Attributes:
        topic: its name.
        title: its question.
        shows: description of the experiment, for a reader who is new to it.
        tables: the measurements.
        conclusion: sentences computed from the numbers.
    """

    topic: str
    title: str
    shows: str
    tables: tuple[Table, ...]
    conclusion: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)
