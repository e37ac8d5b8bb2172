"""Finished cells of a comparison, in a SQLite file: what is in it was measured, and is never measured again.

    key = SHA-256 of every setting a number depends on            a changed setting has other keys, hence no cells

One transaction a cell, so that a kill loses the cell under way and no other. One program at a time: the file is locked
for as long as it is open, and the lock goes with the process, however that ends. Each row carries a digest of itself,
which tells when something else wrote to the file. Everything inside is JSON and text.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hf_posenc.eval.errors import StoreChanged, StoreUnusable

APPLICATION = 0x706F7365  # "pose", in the place SQLite has for it
FORMAT = 1
TABLE = """CREATE TABLE cells (
    key TEXT PRIMARY KEY, scheme TEXT NOT NULL, task TEXT NOT NULL, length INTEGER, state TEXT NOT NULL,
    reason TEXT NOT NULL, rows TEXT NOT NULL, seconds REAL NOT NULL, settings TEXT NOT NULL, digest TEXT NOT NULL
) WITHOUT ROWID"""

State = Literal["done", "refused", "failed"]


@dataclass(frozen=True)
class Record:
    """A cell that was tried.

    Attributes:
        key: of its settings.
        scheme, task: label of the entry, and lm-eval task.
        length: in tokens; None for a task that has no lengths of its own.
        state: ``"refused"`` is not defined here and final; ``"failed"`` is tried again by the next run.
        reason: why it was refused or failed.
        rows: numbers, as `Row.to_dict` has them.
        seconds: it took.
        settings: that `key` was made of.
    """

    key: str
    scheme: str
    task: str
    length: int | None
    state: State
    reason: str
    rows: list[dict[str, Any]]
    seconds: float
    settings: dict[str, Any]


class Store:
    """An open file of cells, ours alone until it is closed.

    Args:
        path: of the file; it and its folder are made if need be.

    Raises:
        StoreUnusable: it cannot be opened, is in use, or is something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.new = [place for place in (path, path.parent) if not place.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnusable(
                f"{path.parent} cannot be a folder of results ({error.strerror}). Choose another with --out."
            ) from error
        with self.told():
            self.connection = sqlite3.connect(path, timeout=0.0, isolation_level=None)
            try:
                self.open()
            except BaseException as error:
                self.connection.close()
                if "locked" not in str(error):  # then it is not ours alone
                    self.take_back()
                raise
        self.file = self.inode()

    def open(self) -> None:
        """Lock the file, and make the table in a new one."""
        run = self.connection.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA synchronous = FULL")
        run("BEGIN EXCLUSIVE")
        application, version = run("PRAGMA application_id").fetchone()[0], run("PRAGMA user_version").fetchone()[0]
        if run("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            run(f"PRAGMA application_id = {APPLICATION}")
            run(f"PRAGMA user_version = {FORMAT}")
            run(TABLE)
        elif application != APPLICATION:
            raise StoreUnusable(f"{self.path} is another program's database. Choose another folder with --out.")
        elif version != FORMAT:
            raise StoreUnusable(
                f"{self.path} has format {version}, this version of hf-posenc reads {FORMAT}. "
                "Use the version that wrote it, or choose another folder with --out."
            )
        run("COMMIT")

    def get(self, key: str) -> Record | None:
        """The cell of that key, or None.

        Raises:
            StoreChanged: it is not as it was written.
        """
        with self.told():
            row = self.connection.execute("SELECT * FROM cells WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        *values, digest = row
        if not is_intact(values, digest):
            raise StoreChanged(
                f"Cell {values[0][:12]} in {self.path} is not as it was written. "
                "Restore the file, or delete it to measure everything again."
            )
        record = dict(zip(Record.__annotations__, self.decoded(values), strict=True))
        return Record(**record)

    def put(self, record: Record) -> None:
        """Keep a cell; when this returns it is on the disk.

        Raises:
            StoreChanged: the file was deleted or replaced since it was opened.
            StoreUnusable: it cannot be written; what was in it is still there.
        """
        if self.inode() != self.file:
            raise StoreChanged(
                f"{self.path} was deleted or replaced while this comparison was writing to it. "
                "Run the same command again, and leave the folder alone meanwhile."
            )
        values = self.encoded(record)
        with self.told():
            self.connection.execute(
                f"INSERT OR REPLACE INTO cells VALUES ({', '.join('?' * (len(values) + 1))})",
                (*values, digest_of(values)),
            )

    def encoded(self, record: Record) -> list[Any]:
        """As columns."""
        json_columns = {"rows", "settings"}
        return [canonical(value) if name in json_columns else value for name, value in asdict(record).items()]

    def decoded(self, values: list[Any]) -> list[Any]:
        """`encoded`, undone; the order of columns is the table's."""
        columns = ["key", "scheme", "task", "length", "state", "reason", "rows", "seconds", "settings"]
        return [json.loads(v) if n in {"rows", "settings"} else v for n, v in zip(columns, values, strict=True)]

    def inode(self) -> tuple[int, int] | None:
        """Which file the path names at the moment."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Close the file and give up the lock; a new file that holds nothing goes, with its folder if that is new."""
        empty = self.new and self.connection.execute("SELECT count(*) FROM cells").fetchone()[0] == 0
        self.connection.close()
        if empty and self.inode() == self.file:
            self.take_back()

    def take_back(self) -> None:
        """Remove what is new: the file, and its folder."""
        for place in self.new:
            with suppress(OSError):
                place.rmdir() if place.is_dir() else place.unlink()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def told(self) -> Iterator[None]:
        """Say SQLite's errors in our words."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreUnusable(f"{self.path}: {error}. {advice(str(error))}") from error


ADVICE = {
    "locked": "Another program is using it; wait for it, or choose another folder with --out.",
    "full": "Free some space and run the same command again; finished cells are kept.",
    "I/O error": "Check the disk and run the same command again; finished cells are kept.",
    "readonly": "Make folder and file writable, or choose another folder with --out.",
    "unable to open": "Make the folder writable, or choose another with --out.",
    "not a database": "Choose another folder with --out, or move the file away.",
    "malformed": "The file is damaged; move it away and run the same command again.",
}


def advice(message: str) -> str:
    """What to do about an error of SQLite."""
    return next((advice for sign, advice in ADVICE.items() if sign in message), "Choose another folder with --out.")


def key_of(settings: Mapping[str, Any]) -> str:
    """The name of a cell: equal for equal settings, and for no others."""
    return hashlib.sha256(canonical(settings).encode()).hexdigest()


def digest_of(values: list[Any]) -> str:
    """What a row is checked against."""
    return hashlib.sha256(canonical(values).encode()).hexdigest()


def is_intact(values: list[Any], digest: Any) -> bool:
    """Whether a row is as it was written; one with values that JSON has no form for never was."""
    try:
        return bool(digest_of(values) == digest)
    except (TypeError, ValueError):
        return False


def canonical(value: Any) -> str:
    """JSON in one way only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
