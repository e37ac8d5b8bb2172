"""What a lesson is: a question, an experiment on small models, and a conclusion that follows from its numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill

from hf_posenc.core.random_state import drawn_from

COLUMNS = 100
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


Result = tuple[str, Iterable[Table], str]
"""What the lesson does, its tables, and the conclusion."""


@dataclass(frozen=True)
class Lesson:
    """A question and the experiment that answers it.

    Attributes:
        title: the question.
        schemes: schemes it runs on by default; empty for a lesson that takes none.
        experiment: runs on a tuple of schemes; without arguments where the lesson takes none.
    """

    title: str
    schemes: tuple[str, ...]
    experiment: Callable[..., Result]

    def run(self, schemes: Sequence[str] = ()) -> tuple[str, tuple[Table, ...], str]:
        """Measure: the same numbers every time."""
        with drawn_from(0):
            given = (tuple(schemes) or self.schemes,) if self.schemes else ()
            shows, tables, conclusion = self.experiment(*given)
        return " ".join(shows.split()), tuple(tables), " ".join(conclusion.split())

    def main(self) -> None:
        """The command of a lesson's script."""
        parser = argparse.ArgumentParser(description=self.title)
        if self.schemes:
            parser.add_argument("schemes", nargs="*", help=f"default: {' '.join(self.schemes)}")
        shows, tables, conclusion = self.run(getattr(parser.parse_args(), "schemes", ()))
        print(f"{self.title}\n\n{fill(shows, COLUMNS)}\n")
        for table in tables:
            show(table)
        print(fill(conclusion, COLUMNS))


def lesson(title: str, *, schemes: tuple[str, ...] = ()) -> Callable[[Callable[..., Result]], Lesson]:
    """Make a lesson of the decorated experiment."""
    return lambda experiment: Lesson(title, schemes, experiment)


def show(table: Table) -> None:
    """Print a table, each column as wide as its widest cell."""
    rows = [list(table.columns), *([text_of(value) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    print("\n".join([*([table.title] if table.title else []), *lines, ""]))


def text_of(value: Value) -> str:
    """A value as a cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
