"""Store of finished cells of a comparison: a SQLite file, locked while it is open, one transaction per cell.

A killed process loses only the cell it was measuring. The lock ends with the process. Every row has a digest of its
values, which detects changes by other programs. All values are JSON and text.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hf_posenc.eval.errors import StoreChanged, StoreUnusable
from hf_posenc.eval.results.record import Record, is_intact, row_digest
from hf_posenc.eval.results.table import FORMAT, INSERT, SELECT, create, decoded, encoded, upgrade

APPLICATION = 0x706F7365  # "pose", in SQLite's application_id


class Store:
    """An open store, exclusively locked until it is closed.

    Args:
        path: of the SQLite file; created with its folder if missing.

    Raises:
        StoreUnusable: the file cannot be opened, is in use, or is another program's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.created = [created for created in (path, path.parent) if not created.exists()]
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
            except BaseException as error:
                self.connection.close()
                if "locked" not in str(error):  # a locked file belongs to another process
                    self.remove_created()
                raise
        self.file = self.inode()

    def open(self) -> None:
        """Lock the file, and create the table in a new one."""
        run = self.connection.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA synchronous = FULL")
        run("BEGIN EXCLUSIVE")
        application, version = run("PRAGMA application_id").fetchone()[0], run("PRAGMA user_version").fetchone()[0]
        if run("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            run(f"PRAGMA application_id = {APPLICATION}")
            create(self.connection)
        elif application != APPLICATION:
            raise StoreUnusable(f"{self.path} is another program's database. Choose another folder with --out.")
        elif not 1 <= version <= FORMAT:
            raise StoreUnusable(
                f"{self.path} has format {version}, this version of hf-posenc reads 1 to {FORMAT}. "
                "Use the version that wrote it, or choose another folder with --out."
            )
        elif version < FORMAT:
            upgrade(self.connection)
        run("COMMIT")

    def get(self, key: str) -> Record | None:
        """Return the record with that key, or None.

        Raises:
            StoreChanged: another program has changed the row.
        """
        with self.explained_errors():
            row = self.connection.execute(f"{SELECT} WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        *values, digest = row
        if not is_intact(values, digest):
            raise StoreChanged(
                f"Cell {values[0][:12]} in {self.path} was changed by another program. "
                "Restore the file, or delete it to measure everything again."
            )
        return decoded(values)

    def settings(self) -> list[dict[str, Any]]:
        """Settings of all cells that were measured."""
        with self.explained_errors():
            rows = self.connection.execute("SELECT settings FROM cells WHERE state = 'done'").fetchall()
        return [json.loads(settings) for (settings,) in rows]

    def put(self, record: Record) -> None:
        """Store a record; when this returns, it is on disk.

        Raises:
            StoreChanged: the file was deleted or replaced since it was opened.
            StoreUnusable: the file cannot be written; its contents are unchanged.
        """
        if self.inode() != self.file:
            raise StoreChanged(
                f"{self.path} was deleted or replaced while this comparison was writing to it. "
                "Run the same command again, and leave the folder alone meanwhile."
            )
        values = encoded(record)
        with self.explained_errors():
            self.connection.execute(INSERT, (*values, row_digest(values)))

    def inode(self) -> tuple[int, int] | None:
        """Return device and inode of the file the path names now, or None without a file."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Close the file and release the lock; remove an empty file created here, with its folder if created."""
        empty = self.created and self.connection.execute("SELECT count(*) FROM cells").fetchone()[0] == 0
        self.connection.close()
        if empty and self.inode() == self.file:
            self.remove_created()

    def remove_created(self) -> None:
        """Remove the file and the folder that this store created."""
        for path in self.created:
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()

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
            raise StoreUnusable(f"{self.path}: {error}. {remedy(str(error))}") from error


REMEDIES = {
    "locked": "Another program is using it; wait for it, or choose another folder with --out.",
    "full": "Free some space and run the same command again; finished cells are kept.",
    "I/O error": "Check the disk and run the same command again; finished cells are kept.",
    "readonly": "Make folder and file writable, or choose another folder with --out.",
    "unable to open": "Make the folder writable, or choose another with --out.",
    "not a database": "Choose another folder with --out, or move the file away.",
    "malformed": "The file is damaged; move it away and run the same command again.",
}


def remedy(message: str) -> str:
    """Return what to do about an error message of SQLite."""
    return next((text for sign, text in REMEDIES.items() if sign in message), "Choose another folder with --out.")
