"""Table of cells in a store: its columns, how a record is written into them, and upgrades of earlier formats.

    format 1     the columns of a record up to its settings
    format 2     and the scores of its documents, and remarks

A store of an earlier format is upgraded when it is opened; its cells then have no documents.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, fields
from typing import Any

from hf_posenc.eval.results.record import Record, canonical, is_intact, row_digest

FORMAT = 2
COLUMNS = tuple(field.name for field in fields(Record))
JSON = frozenset({"rows", "settings", "documents", "remarks"})
"""Columns that hold JSON."""
ADDED = {"documents": "[]", "remarks": "[]"}
"""Columns that earlier formats lack, and what they hold for cells measured then."""
FIRST = """CREATE TABLE cells (
    key TEXT PRIMARY KEY, scheme TEXT NOT NULL, task TEXT NOT NULL, length INTEGER, state TEXT NOT NULL,
    reason TEXT NOT NULL, rows TEXT NOT NULL, seconds REAL NOT NULL, settings TEXT NOT NULL, digest TEXT NOT NULL
) WITHOUT ROWID"""
"""The table of format 1."""
INSERT = f"INSERT OR REPLACE INTO cells ({', '.join(COLUMNS)}, digest) VALUES ({', '.join('?' * (len(COLUMNS) + 1))})"
SELECT = f"SELECT {', '.join(COLUMNS)}, digest FROM cells"


def create(connection: sqlite3.Connection) -> None:
    """Create the table in an empty file."""
    connection.execute(FIRST)
    upgrade(connection)


def upgrade(connection: sqlite3.Connection) -> None:
    """Add the columns that an earlier format lacks, and their values to the digests of its rows.

    A row that another program has changed keeps its digest, so that it is still detected.
    """
    run = connection.execute
    present = {name for _, name, *_ in run("PRAGMA table_info(cells)")}
    missing = [name for name in ADDED if name not in present]
    for name in missing:
        run(f"ALTER TABLE cells ADD COLUMN {name} TEXT NOT NULL DEFAULT '{ADDED[name]}'")
    for *values, digest in run(SELECT).fetchall() if missing else ():
        earlier = [value for name, value in zip(COLUMNS, values, strict=True) if name not in missing]
        if is_intact(earlier, digest):
            run("UPDATE cells SET digest = ? WHERE key = ?", (row_digest(values), values[0]))
    run(f"PRAGMA user_version = {FORMAT}")


def encoded(record: Record) -> list[Any]:
    """Encode a record as values of `COLUMNS`."""
    return [canonical(value) if name in JSON else value for name, value in asdict(record).items()]


def decoded(values: list[Any]) -> Record:
    """The record of such values."""
    return Record(**{n: json.loads(v) if n in JSON else v for n, v in zip(COLUMNS, values, strict=True)})
