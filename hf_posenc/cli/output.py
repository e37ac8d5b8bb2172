"""All output of the command line: results on stdout, progress and errors on stderr, JSON on request.

No text is interpreted as markup: names, paths and messages come from other people's files.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hf_posenc.cli.global_options import BadArgument
from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.core.progress import OpenProgressCallback

if TYPE_CHECKING:
    from rich.console import Console


PIPED_WIDTH = 200  # width of a table in characters if stdout is not a terminal
FIRST_PAUSE, LONGEST_PAUSE = 5, 60  # seconds between lines of progress without a terminal
ENOUGH = 0.05  # share of the work before the time left is estimated: the first steps are slow
SECRET = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
QUIET_VARIABLES = ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE")


def show_json(value: Any) -> None:
    """Write ``value`` as JSON in ASCII, which every terminal encoding can represent."""
    sys.stdout.write(SECRET.sub("hf_", json.dumps(value, indent=1, default=str)) + "\n")
    sys.stdout.flush()


def show_text(text: str) -> None:
    """Write plain text."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Write a table; numbers are right-aligned, booleans read yes or no."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    target, cells = console(sys.stdout), [tuple(row) for row in rows]
    lines = [[printable(column) for column in columns], *([cell_text(cell) for cell in row] for row in cells)]
    padding, widths = fitting_widths(lines, target.width)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, padding))
    for number, (column, width) in enumerate(zip(lines[0], widths, strict=True)):
        numeric = bool(cells) and all(
            isinstance(row[number], (int, float)) and not isinstance(row[number], bool) for row in cells
        )
        table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold", width=width)
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    if title is not None:  # rich would wrap a title inside the table at the width of a narrow table
        target.print(Text(printable(title), style="italic"))
    target.print(table)


def fitting_widths(lines: Sequence[Sequence[str]], room: int) -> tuple[int, list[int | None]]:
    """Return padding and column widths of a table that breaks as few words as possible in a narrow terminal.

    None leaves the width of a column to rich.
    """
    from rich.cells import cell_len

    columns = list(zip(*lines, strict=True))
    widths = [max(cell_len(part) for cell in column for part in cell.split("\n")) for column in columns]
    words = [max(cell_len(word) for cell in column for word in (*cell.split(), "")) for column in columns]
    room_of_text = room - (len(columns) - 1)
    if sum(widths) + 2 * len(columns) - 2 <= room_of_text or room_of_text < len(columns):
        return 1, [None] * len(columns)
    while sum(words) > room_of_text:
        words[words.index(max(words))] -= 1
    while sum(widths) > room_of_text:
        slack = [width - word for width, word in zip(widths, words, strict=True)]
        widths[slack.index(max(slack))] -= 1
    return 0, list(widths)


def note(message: str) -> None:
    """Write a remark to stderr, where it does not mix with a command's result."""
    sys.stderr.write(f"{printable(message)}\n")


def fail(message: str) -> None:
    """Write an error to stderr."""
    sys.stderr.write(f"Error: {printable(message)}\n")


@contextmanager
def other_bars_off() -> Iterator[None]:
    """Switch the progress bars of transformers off inside the block."""
    from transformers import logging

    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()


@contextmanager
def progress() -> Iterator[OpenProgressCallback]:
    """Show one progress bar on stderr, or without a terminal at most one line per minute.

    Nothing is shown if one of `QUIET_VARIABLES` is set.
    """
    with other_bars_off():
        if any(os.environ.get(name, "0").upper() not in {"", "0", "FALSE", "NO", "OFF"} for name in QUIET_VARIABLES):
            yield lambda done, doing: None
        elif sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
            from rich.table import Column

            room = Column(no_wrap=True, ratio=1, overflow="ellipsis")  # a long text must not hide the times
            doing_column = TextColumn("{task.description}", markup=False, table_column=room)
            left_column = TextColumn("{task.fields[left]}", markup=False)
            columns = doing_column, BarColumn(16), TaskProgressColumn(), TimeElapsedColumn(), left_column
            left = TimeLeft()
            with Progress(*columns, console=console(sys.stderr), transient=True, expand=True) as bar:
                task = bar.add_task("", total=None, left="")
                yield lambda done, doing: bar.update(
                    task, total=None if done is None else 1.0, completed=done, description=printable(doing),
                    left=left(done),
                )  # fmt: skip
        else:
            lines = ProgressLines(sys.stderr)
            yield lines
            lines.close()


class TimeLeft:
    """Estimate the time left from the share done; the estimate restarts when the share falls."""

    def __init__(self) -> None:
        self.since, self.first = 0.0, 0.0
        self.last: float | None = None

    def __call__(self, done: float | None) -> str:
        """Return the time left in words; empty if the share is too small for an estimate, or if all is done."""
        now, previous, self.last = time.monotonic(), self.last, done
        if done is None or previous is None or done < previous or done <= self.first:
            self.since, self.first = now, done or 0.0  # the time before the first step does not count
            return ""
        if done - self.first < ENOUGH or done >= 1:
            return ""
        return f"{timedelta(seconds=round((now - self.since) * (1 - done) / (done - self.first)))} left"


class ProgressLines:
    """Progress as lines of text, for log files: first every few seconds, later at most one per minute.

    The last line of each part is always written. A part ends when the share becomes known or unknown, or falls.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.next, self.pause, self.unwritten = stream, 0.0, FIRST_PAUSE, ""
        self.left = TimeLeft()

    def __call__(self, done: float | None, doing: str) -> None:
        """Write a line with the share done and the time left, unless a line was just written."""
        previous, now = self.left.last, time.monotonic()
        if previous != done and (done is None or previous is None or done < previous):
            self.close()
        self.unwritten = printable(doing)
        if done is not None:
            self.unwritten += f": {100 * done:.0f} %"
        if left := self.left(done):
            self.unwritten += f", {left}"
        if now >= self.next:
            self.next, self.pause = now + self.pause, min(2 * self.pause, LONGEST_PAUSE)
            self.close()

    def close(self) -> None:
        """Write the last line if it was held back, so that a log shows how far the work came."""
        if self.unwritten:
            self.stream.write(f"{self.unwritten}\n")
            self.stream.flush()
        self.unwritten = ""


def console(stream: TextIO) -> Console:
    """Create a rich console without markup, emoji codes or highlighting."""
    from rich.console import Console

    width = None if stream.isatty() else PIPED_WIDTH
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False)


def printable(text: str) -> str:
    """Escape control characters, so that foreign text cannot control the terminal; redact tokens of the Hub."""
    return SECRET.sub("hf_…", "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text))


def cell_text(cell: object) -> str:
    """Format a value for a table cell."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    if isinstance(cell, (tuple, list)):
        return printable(", ".join(map(str, cell)))
    return "" if cell is None else printable(str(cell))


def check_output_file(path: Path) -> None:
    """Check that an output path can be written as a regular file.

    Raises:
        BadArgument: the path exists and is not a file.
        FolderUnusable: the folder cannot be written to.
    """
    if path.exists() and not path.is_file():
        raise BadArgument(f"--out {str(path)!r} cannot be a file. Choose another name.")
    folder_to_write(path.absolute().parent)
