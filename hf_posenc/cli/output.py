"""The one place that speaks: results on stdout, progress and errors on stderr, JSON for machines.

Nothing is ever read as markup: names, paths and messages come from other people's files.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Tell = Callable[[float | None, str], None]
"""Called with the share of the work that is done, or None where nobody knows it, and what is going on."""

PIPED_WIDTH = 200  # columns of a table that no terminal limits
SECONDS_BETWEEN_LINES = 60  # of progress where there is no terminal
SECRET = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
QUIETING = ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE")


def show_json(value: Any) -> None:
    """Write ``value`` as JSON, in ASCII so that every encoding carries it."""
    sys.stdout.write(SECRET.sub("hf_", json.dumps(value, indent=1, default=str)) + "\n")
    sys.stdout.flush()


def show_text(text: str) -> None:
    """Write a text as it is."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Write rows under column heads; numbers stand right, truth values read yes or no."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    kept = [tuple(row) for row in rows]
    told = None if title is None else Text(printable(title))
    table = Table(title=told, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        numeric = bool(kept) and all(isinstance(row[number], (int, float)) for row in kept)
        table.add_column(
            Text(printable(column)),
            justify="right" if numeric and not is_flag(kept, number) else "left",
            overflow="fold",
        )
    for row in kept:
        table.add_row(*(Text(cell_text(cell)) for cell in row))
    show(table)


def show(renderable: RenderableType) -> None:
    """Write anything rich can draw."""
    console(sys.stdout).print(renderable)


def fail(message: str) -> None:
    """Write an error to stderr."""
    sys.stderr.write(f"Error: {printable(message)}\n")


@contextmanager
def progress(quiet: bool = False) -> Iterator[Tell]:
    """A bar on stderr while the block runs, the only one; without a terminal, one line a minute; quiet, nothing."""
    with other_bars_off(), own_bar(quiet) as tell:
        yield tell


@contextmanager
def other_bars_off() -> Iterator[None]:
    """Keep transformers from drawing its bars into ours."""
    from transformers.utils import logging

    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()


@contextmanager
def own_bar(quiet: bool = False) -> Iterator[Tell]:
    """The bar, the lines that stand for it, or nothing where the call or the environment asks for that."""
    if quiet or any(os.environ.get(name, "0").upper() not in {"", "0", "FALSE", "NO", "OFF"} for name in QUIETING):
        yield lambda done, doing: None
    elif sys.stderr.isatty():
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        doing_column = TextColumn("{task.description}", markup=False)
        columns = doing_column, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda done, doing: bar.update(
                task, total=None if done is None else 1.0, completed=done, description=printable(doing)
            )
    else:
        yield Lines(sys.stderr)


class Lines:
    """Progress as lines of text, for log files."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.next = stream, 0.0

    def __call__(self, done: float | None, doing: str) -> None:
        """Write a line, unless the last one is fresh."""
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + SECONDS_BETWEEN_LINES
        self.stream.write(printable(doing) + ("" if done is None else f": {100 * done:.0f} %") + "\n")
        self.stream.flush()


def console(stream: TextIO) -> Console:
    """A rich console without markup, emoji codes or highlighting; plain where the stream is no terminal."""
    from rich.console import Console

    wide = None if stream.isatty() else PIPED_WIDTH
    return Console(file=stream, width=wide, markup=False, emoji=False, highlight=False, soft_wrap=False)


def printable(text: str) -> str:
    """``text`` with control characters written out, so that a foreign string cannot drive the terminal."""
    return without_secrets("".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text))


def without_secrets(text: str) -> str:
    """``text`` with tokens of the hub cut off."""
    return SECRET.sub("hf_…", text)


def cell_text(cell: object) -> str:
    """A value as a table shows it."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    if isinstance(cell, (tuple, list)):
        return printable(", ".join(map(str, cell)))
    return "" if cell is None else printable(str(cell))


def is_flag(rows: Sequence[Sequence[object]], column: int) -> bool:
    """Whether a column holds truth values."""
    return all(isinstance(row[column], bool) for row in rows)
