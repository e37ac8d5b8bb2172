"""Records of measured cells, and their store: a SQLite file that is locked while it is open.

Each cell is one transaction, so a killed process loses only the cell it was measuring. The lock ends with the process.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from hf_posenc.eval.errors import StoreUnreadable, StoreUnusable
from hf_posenc.eval.results.rows import DocumentScore, Row

APPLICATION = 0x706F7365  # "pose", in SQLite's application_id
FORMAT = 3
"""Format of the file. Files of earlier formats are refused: every key holds the version of this package anyway."""


class Store:
    """An open store, exclusively locked until it is closed.

    Raises:
        StoreUnusable: the file cannot be opened, or is in use.
        StoreUnreadable: it is damaged, or another program or version wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnusable(
                f"{path.parent} cannot be a folder of results ({error.strerror}). Choose another with --out."
            ) from error
        with self.explained_errors():
            self.connection = sqlite3.connect(path, timeout=0.0, isolation_level=None)
            try:
                self.open()
            except BaseException:
                self.connection.close()
                raise

    def open(self) -> None:
        """Lock the file, and create the table in a new one."""
        run = self.connection.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA synchronous = FULL")
        run("BEGIN EXCLUSIVE")
        application, version = run("PRAGMA application_id").fetchone()[0], run("PRAGMA user_version").fetchone()[0]
        if run("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            run(f"PRAGMA application_id = {APPLICATION}")
            run(f"PRAGMA user_version = {FORMAT}")
            run("CREATE TABLE cells (key TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID")
        elif application != APPLICATION:
            raise StoreUnreadable(f"{self.path} is another program's database. Choose another folder with --out.")
        elif version != FORMAT:
            raise StoreUnreadable(
                f"{self.path} has format {version}, this version of hf-posenc reads {FORMAT}. "
                "Use the version that wrote it, or choose another folder with --out."
            )
        run("COMMIT")

    def get(self, key: str) -> Record | None:
        """Return the record with that key, or None.

        Raises:
            StoreUnreadable: the record is damaged.
        """
        with self.explained_errors():
            row = self.connection.execute("SELECT record FROM cells WHERE key = ?", (key,)).fetchone()
        try:
            return None if row is None else TypeAdapter(Record).validate_json(row[0])
        except ValidationError as error:
            raise StoreUnreadable(f"{self.path} holds a damaged cell, {key[:12]}…. {ELSEWHERE}") from error

    def put(self, record: Record) -> None:
        """Store a record; when this returns, it is on disk.

        Raises:
            StoreUnusable: the file cannot be written; its contents are unchanged.
        """
        with self.explained_errors():
            self.connection.execute(
                "INSERT OR REPLACE INTO cells VALUES (?, ?)", (record.key, canonical(asdict(record)))
            )

    def close(self) -> None:
        """Close the file and release the lock."""
        self.connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def explained_errors(self) -> Iterator[None]:
        """Raise SQLite's errors as `StoreUnusable`, with what to do."""
        try:
            yield
        except sqlite3.Error as error:
            if any(sign in str(error) for sign in DAMAGED):
                raise StoreUnreadable(f"{self.path}: {error}. {ELSEWHERE}") from error
            raise StoreUnusable(
                f"{self.path}: {error}. Wait for other programs that use it, free some space or make it writable, and "
                "run the same command again, or choose another folder with --out; finished cells are kept."
            ) from error


DAMAGED = ("malformed", "not a database", "no such table")
"""Parts of SQLite's messages about a file that stays unusable if the command is repeated."""
ELSEWHERE = "Choose another folder with --out, where every cell is measured again."

State = Literal["done", "refused", "failed"]


@dataclass(frozen=True)
class Costs:
    """Memory costs of one cell, or the largest ones of several cells; the time is in the record.

    Attributes:
        peak_memory: bytes; None if it cannot be measured.
        memory_of: owner of this memory: ``"process"``, weights and libraries included, or the device's name.
        cache_per_token: bytes of the KV cache for each token it holds; None for a model without one.
    """

    peak_memory: int | None
    memory_of: str
    cache_per_token: float | None


@dataclass(frozen=True)
class Record:
    """Outcome of one cell.

    Attributes:
        key: digest of ``settings``.
        scheme, task: label of the entry, and lm-eval task.
        length: tokens; None for a task without a length sweep.
        state: ``"done"``; ``"refused"``, which is final; or ``"failed"``, which the next run tries again.
        reason: reason of a refusal or failure.
        rows: one row per number.
        seconds: duration of the measurement.
        settings: everything that ``key`` is computed from.
        documents: scores of single documents.
        remarks: caveats about this cell.
        costs: memory costs; None if the cell was not finished. They differ from run to run, as ``seconds`` do.
    """

    key: str
    scheme: str
    task: str
    length: int | None
    state: State
    reason: str
    rows: list[Row]
    seconds: float
    settings: dict[str, Any]
    documents: list[DocumentScore] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    costs: Costs | None = None


def key_of(settings: Mapping[str, Any]) -> str:
    """Compute the key of a cell, which is equal only for equal settings."""
    return hashlib.sha256(canonical(settings).encode()).hexdigest()


def canonical(value: Any) -> str:
    """Encode as canonical JSON: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def costs_of(records: Sequence[Record]) -> Costs:
    """The largest costs of records."""
    known = [record.costs for record in records if record.costs is not None]
    return Costs(
        max((one.peak_memory for one in known if one.peak_memory is not None), default=None),
        ", ".join(dict.fromkeys(one.memory_of for one in known if one.peak_memory is not None)),
        max((one.cache_per_token for one in known if one.cache_per_token is not None), default=None),
    )
