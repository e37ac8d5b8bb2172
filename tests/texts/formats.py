"""Write the same documents in every supported file format."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Writer = Callable[[Path, Sequence[str]], Path]


def jsonl(folder: Path, texts: Sequence[str], field: str = "text") -> Path:
    file = folder / "a.jsonl"
    file.write_text("\n".join(json.dumps({"n": n, field: text}) for n, text in enumerate(texts)), encoding="utf-8")
    return file


def jsonl_as_written(folder: Path, texts: Sequence[str]) -> Path:
    """Characters unescaped, a mark of the byte order, blank lines, and values of other types beside."""
    file = folder / "b.jsonl"
    lines = [json.dumps({"n": [n, "x", None][n % 3], "text": t}, ensure_ascii=False) for n, t in enumerate(texts)]
    file.write_text("\n\n".join(lines) + "\n \n", encoding="utf-8-sig")
    return file


def json_array(folder: Path, texts: Sequence[str]) -> Path:
    file = folder / "a.json"
    file.write_text(json.dumps([{"text": text} for text in texts], indent=1), encoding="utf-8")
    return file


def json_lines_as_json(folder: Path, texts: Sequence[str]) -> Path:
    return jsonl(folder, texts).rename(folder / "lines.json")


def parquet(folder: Path, texts: Sequence[str]) -> Path:
    file = folder / "a.parquet"
    table = pa.table({"n": pa.array(range(len(texts)), pa.int64()), "text": pa.array(texts, pa.string())})
    pq.write_table(table, file, row_group_size=2)
    return file


def files(folder: Path, texts: Sequence[str]) -> Path:
    """A folder of plain text, one file for each document."""
    (folder / "books" / "deep").mkdir(parents=True)
    (folder / "books" / ".hidden").mkdir()
    (folder / "books" / ".hidden" / "a.txt").write_text("not a document")
    (folder / "books" / "picture.png").write_bytes(b"\x89PNG\0")
    for number, text in enumerate(texts):
        name = folder / "books" / ("deep" if number >= 1000 else "") / f"{number:04}.txt"
        name.write_bytes(text.encode())
    return folder / "books"


RECORDS: tuple[Writer, ...] = (
    jsonl, jsonl_as_written, json_array, json_lines_as_json, parquet,
)  # fmt: skip
