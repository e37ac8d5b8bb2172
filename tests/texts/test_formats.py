"""Any documents, written in any format, read back as they were."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets", reason="records are read with the extra `train`")

from datasets import Dataset, DatasetDict, IterableDataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_posenc.texts import HubDataset, TextSource

from .formats import RECORDS, Writer, files, jsonl, parquet

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=6)
PLAIN = st.lists(  # a plain text file has line breaks, and no NUL
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), min_size=1, max_size=40),
    min_size=1, max_size=6,
)  # fmt: skip


def read(source: Any, **reading: Any) -> list[Any]:
    """Contents of all documents."""
    return [document.content for document in TextSource.of_names(source, **reading).documents()]


@pytest.mark.parametrize("write", RECORDS, ids=lambda write: write.__name__)
@given(texts=TEXTS)
@settings(max_examples=25, deadline=None)
def test_records_read_back_equal(write: Writer, texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert read(write(Path(folder), texts)) == texts


@given(texts=PLAIN)
@settings(max_examples=25, deadline=None)
def test_files_of_a_folder_read_back_equal(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert read(files(Path(folder), texts)) == texts


def test_plain_text_is_one_document(tmp_path: Path) -> None:
    file = tmp_path / "a.log"  # a name that says nothing
    file.write_text("one\n\ntwo\n\n")
    assert read(file) == ["one\n\ntwo\n\n"]


def test_several_sources_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("plain")
    dataset = Dataset.from_dict({"text": ["held"]})
    names = [tmp_path / "a.txt", jsonl(tmp_path, ["one", "two"]), dataset, parquet(tmp_path, ["three"])]
    assert read(names) == ["plain", "one", "two", "held", "three"]
    assert [d.name for d in TextSource.of_names(names).documents()] == [
        "a.txt", "a.jsonl:1", "a.jsonl:2", "dataset:0", "a.parquet:1",
    ]  # fmt: skip


def test_the_column_is_the_one_named(tmp_path: Path) -> None:
    assert read(jsonl(tmp_path, ["one"], field="body"), field="body") == ["one"]
    dataset = Dataset.from_dict({"text": ["no"], "body": ["yes"]})
    assert read(dataset, field="body") == ["yes"]
    assert read(dataset.to_iterable_dataset(), field="body") == ["yes"]


def test_a_value_that_is_missing_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": null}\n{"text": "b"}')
    assert read(tmp_path / "a.jsonl") == ["", "b"]
    assert read(Dataset.from_dict({"text": [None, "b"]})) == ["", "b"]


@pytest.mark.parametrize("kind", ["dataset", "iterable", "generated", "one split"])
def test_datasets_of_every_kind(kind: str) -> None:
    texts = ["one", "two"]
    dataset = Dataset.from_dict({"text": texts})
    given = {
        "dataset": dataset,
        "iterable": dataset.to_iterable_dataset(),
        "generated": IterableDataset.from_generator(lambda: ({"text": text} for text in texts)),
        "one split": DatasetDict({"train": dataset}),
    }[kind]
    source = TextSource.of_names(given)
    for _ in range(2):  # a source can be read again
        assert [document.content for document in source.documents()] == texts
    assert source.streams is (kind in ("iterable", "generated"))


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("hub:owner/name", HubDataset("owner/name")),
        ("hub:owner/name:train", HubDataset("owner/name", "train")),
        ("hub:owner/name:de:train", HubDataset("owner/name", "train", "de")),
    ],
)
def test_names_of_datasets(name: str, parsed: HubDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(*given: Any, **options: Any) -> Any:
        asked.append((given, options))
        found = Dataset.from_dict({"text": ["from afar"]})
        return found if options["split"] else DatasetDict({"train": found})

    monkeypatch.setattr("datasets.load_dataset", load)
    source = TextSource.of_names(name)
    assert source.parts == (parsed,)
    assert str(parsed) == name
    assert [document.content for document in source.documents()] == ["from afar"]
    assert asked == [((parsed.name, parsed.config), {"split": parsed.split, "streaming": False})]
