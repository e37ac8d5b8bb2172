"""What cannot be read is refused in words that name the file and the place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets", reason="records are read with the extra `train`")

from datasets import Dataset, DatasetDict

from hf_posenc.errors import UnreadableDocuments, WrongKind
from hf_posenc.texts import Document, TextSource
from hf_posenc.texts.files import check_size

BROKEN: list[tuple[str, str | bytes, str]] = [
    ("a.jsonl", '{"text": "x"}\n{oops', "line 2 of a.jsonl is not valid JSON: Expecting property name"),
    ("a.jsonl", '{"text": "x"}\n{"txt": "y", "n": 1}', "'text' in line 2 of a.jsonl, only n, txt.+text_field"),
    ("a.jsonl", '{"text": 7}', "'text' in line 1 of a.jsonl holds 7, which is no text"),
    ("a.jsonl", '{"text": ["a"]}', r"holds \['a'\], which is no text.+apply_chat_template"),
    ("a.jsonl", '"text"', "line 1 of a.jsonl: it is not a record, but of type str"),
    ("a.jsonl", b'{"text": "\xe9"}', "a.jsonl' cannot be read as UTF-8 text: 'utf-8' codec"),
    ("a.json", "{'text'", "a.json' is not valid JSON: Expecting"),
    ("a.json", '[{"text": "x"}, 4]', "record 2 of a.json: it is not a record, but of type int"),
    ("a.json", '{"data": []}', "'text' in record 1 of a.json, only data"),
    ("a.csv", "n,text\n1,x\n", "a.csv' is in a format that is not read.+JSON Lines"),
    ("a.parquet", b"PAR1 not really", "a.parquet' cannot be read as Parquet"),
    ("a.txt", b"text\0more", "holds NUL bytes: it is a binary file"),
    ("a.txt", b"\xff\xfea\0", "cannot be read as UTF-8 text.+convert it"),
    ("a.txt.gz", b"packed", "a.txt.gz' is in a format that is not read. Unpack it with gunzip"),
]


def read(given: Any, **reading: Any) -> list[Document]:
    return list(TextSource.of_names(given, **reading).documents())


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_broken_files(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UnreadableDocuments, match=message):
        read(tmp_path / name)


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def mixed(folder: Path) -> Path:
    """A file that is read beside one that is not: to leave it out would be silent."""
    (folder / "a.txt").write_text("one")
    (folder / "b.csv").write_text("text\ntwo\n")
    return folder


def saved(folder: Path) -> Path:
    Dataset.from_dict({"text": ["one"]}).save_to_disk(str(folder / "saved"))
    return folder / "saved"


PLACES: list[tuple[Callable[[Path], Path], str]] = [
    (lambda folder: folder / "nowhere.txt", "nowhere.txt' does not exist"),
    (lambda folder: folder / ("x" * 5000), "name too long"),
    (lambda folder: folder / "a\0b", "null"),
    (pipe, "a pipe or a device"),
    (empty, "Files that count end in .json"),
    (mixed, "b.csv' is in a format that is not read"),
    (saved, "to_parquet"),
]


@pytest.mark.parametrize(("place", "message"), PLACES)
def test_places_without_text(place: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableDocuments, match=message):
        read(place(tmp_path))


def test_a_dataset_without_the_column() -> None:
    dataset = Dataset.from_dict({"body": ["one"]})
    with pytest.raises(UnreadableDocuments, match="'text' in dataset, only body"):
        read(dataset)
    with pytest.raises(UnreadableDocuments, match="'text' in dataset, only body"):
        read(dataset.to_iterable_dataset())
    with pytest.raises(UnreadableDocuments, match="2 splits: train, test"):
        read(DatasetDict(train=dataset, test=dataset))


def test_datasets_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("no network here\nand more")

    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(UnreadableDocuments, match="'hub:a/b:train' cannot be loaded: no network here"):
        read("hub:a/b:train")


@pytest.mark.parametrize(
    ("given", "reading"),
    [(7, {}), ([None], {}), (b"a.txt", {}), ("a.txt", {"field": ""}), ([["a.txt"]], {})],
)
def test_arguments_of_another_kind(given: Any, reading: dict[str, Any]) -> None:
    with pytest.raises(WrongKind):
        TextSource.of_names(given, **reading)


def test_a_text_larger_than_memory_is_refused_as_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_posenc.texts.files.main_memory", lambda: 16 << 10)
    with pytest.raises(UnreadableDocuments, match=r"there is room for 0.0. Split it into files"):
        check_size("a.txt", 1000)
