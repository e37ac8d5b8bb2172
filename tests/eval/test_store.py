"""The file of finished cells: what is in it stays, what is not ours is refused, and nobody writes to it unseen."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hf_posenc.eval.errors import StoreUnreadable, StoreUnusable
from hf_posenc.eval.results.rows import Row
from hf_posenc.eval.results.store import Costs, Record, Store

RECORD = Record(
    key="k", scheme="yarn", task="posenc_ppl", length=256, state="done", reason="",
    rows=[Row("ü", "yarn", "posenc_ppl", 256, None, "nll", 0.1 + 0.2, None, 4)], seconds=1.5,
    settings={"seed": 0}, costs=Costs(1 << 20, "process", 256.0),
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cells.sqlite"


def test_a_record_survives_a_round_trip(path: Path) -> None:
    with Store(path) as store:
        assert store.get("k") is None
        store.put(RECORD)
        store.put(replace(RECORD, key="other", length=None, state="failed", reason="a 'quoted' reason", rows=[]))
    with Store(path) as store:
        assert store.get("k") == RECORD
        assert store.get("other").length is None  # type: ignore[union-attr]


def test_two_at_once_are_refused(path: Path) -> None:
    with Store(path) as first:
        with pytest.raises(StoreUnusable, match="locked"):
            Store(path)
        first.put(RECORD)
    Store(path).close()  # and afterwards it is free


def test_a_killed_owner_leaves_the_file_usable(path: Path) -> None:
    code = (
        "import pathlib; from hf_posenc.eval.results.store import Store\n"
        "from hf_posenc.eval.results.store import Costs, Record; from hf_posenc.eval.results.rows import Row\n"
        f"s = Store(pathlib.Path({str(path)!r})); s.put({RECORD!r})\n"
        "s.connection.execute('BEGIN'); s.connection.execute(\"DELETE FROM cells\"); print('in', flush=True); input()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "in\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    with Store(path) as store:
        assert store.get("k") == RECORD  # what was under way never happened


def test_other_files_are_refused(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.write_text("this is somebody's diary, " * 100)
    with pytest.raises(StoreUnreadable, match="not a database"):
        Store(path)
    assert path.read_text().startswith("this is somebody's")
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE people (name TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreUnreadable, match="another program's database"):
        Store(other)
    with Store(path.with_name("newer")) as store:
        store.put(RECORD)
    connection = sqlite3.connect(path.with_name("newer"))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreUnreadable, match="format 99"):
        Store(path.with_name("newer"))


def test_damage_is_named_and_left_as_it_is(path: Path) -> None:
    with Store(path) as store:
        store.put(RECORD)
        store.connection.execute("UPDATE cells SET record = '{\"key\": 1'")
        with pytest.raises(StoreUnreadable, match="damaged cell"):
            store.get("k")
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(StoreUnreadable, match="malformed"):
        Store(path)
    assert path.stat().st_size == 3000


def test_a_full_disk_keeps_what_was_there(path: Path) -> None:
    with Store(path) as store:
        store.put(RECORD)
        pages = store.connection.execute("PRAGMA page_count").fetchone()[0]
        store.connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then says what it says of a full disk
        with pytest.raises(StoreUnusable, match="full"):
            store.put(replace(RECORD, key="big", rows=[{"text": "x" * 100_000}]))
        assert store.get("k") == RECORD
    with Store(path) as store:
        assert store.get("big") is None
        assert store.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_an_invalid_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="folder"):
        Store(tmp_path / "file" / "cells.sqlite")
