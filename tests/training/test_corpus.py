"""Texts as tokens on disk: equal to the tokens in memory, in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from datasets import Dataset, IterableDataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_posenc import patch_model
from hf_posenc.errors import HeldOutOverlap
from hf_posenc.texts import TextSource
from hf_posenc.training.corpus import tokenise
from hf_posenc.training.dataset import PackedRows

from .test_finetune import FACTOR, TARGET, TEXTS, llama, run, tokenizer  # noqa: F401 (a fixture)

SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) > 8)


def words(count: int, first: int) -> str:
    return " ".join(f"w{(first + i) % 28}" for i in range(count))


@given(sizes=SIZES, length=st.integers(2, 8), separate=st.booleans(), batch=st.sampled_from([1, 40, 1 << 20]))
@settings(max_examples=60, deadline=None)
def test_mapped_rows_are_those_of_memory(
    sizes: list[int],
    length: int,
    separate: bool,
    batch: int,
    tokenizer: Any,  # noqa: F811
) -> None:
    """The reference tokenises each document alone and packs by plain lists."""
    texts = [words(size, 3 * number) for number, size in enumerate(sizes)]
    plain = [(token, place) for text in texts if text for place, token in enumerate([*tokenizer(text)["input_ids"], 1])]
    expected = [plain[n * length : (n + 1) * length] for n in range(len(plain) // length)]
    source = TextSource(tuple(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_posenc.training.corpus.BATCH", batch)
        corpus = tokenise(tokenizer, source.documents())
        part = tokenise(tokenizer, source.documents(), enough=length)
    mapped = PackedRows(corpus, length, separate=separate)
    assert len(mapped) == len(expected)
    assert torch.equal(part.tokens, corpus.tokens[: len(part.tokens)])
    assert len(part.tokens) == len(corpus.tokens) if batch > 40 else len(part.tokens) >= length
    for number, row in enumerate(expected):
        assert mapped[number]["input_ids"].tolist() == [token for token, _ in row]
        if separate:
            before = min(place for _, place in row[: next((i for i, (_, p) in enumerate(row) if i and p == 0), None)])
            first = next((i for i, (_, place) in enumerate(row) if i and place == 0), length)
            positions = [place - before if i < first else place for i, (_, place) in enumerate(row)]
            assert mapped[number]["position_ids"].tolist() == positions
            labels = [token if place else -100 for (token, _), place in zip(row, positions, strict=True)]
            assert mapped[number]["labels"].tolist() == labels


MEMORY = """
import json, resource, sys
import numpy as np
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from hf_posenc.texts import TextSource
from hf_posenc.training.corpus import tokenise
from hf_posenc.training.dataset import PackedRows

words = Tokenizer(models.WordLevel({"<unk>": 0, "w": 1}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

file = Path(sys.argv[1])
first = TextSource.of_names(file.with_name("small.jsonl"))
tokenise(tokenizer, first.documents())
before = peak()
corpus = tokenise(tokenizer, TextSource.of_names(file).documents())
rows = PackedRows(corpus, 1024)
written = peak()
assert rows[len(rows) - 1]["input_ids"].shape == (1024,)
print(json.dumps({"before": before, "after": written, "tokens": len(corpus.tokens)}))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """4 million tokens take 32 MiB as int64, and more than 1 GiB while a tokenizer holds all of them."""
    line = json.dumps({"text": "w " * 16_000}) + "\n"
    (tmp_path / "small.jsonl").write_text(line * 64)
    (tmp_path / "large.jsonl").write_text(line * 250)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "large.jsonl")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tokens"] == 250 * 16_000
    assert found["after"] - found["before"] < 24, found  # MiB


def test_a_streamed_run_goes_on_where_it_was_killed(tokenizer, tmp_path, monkeypatch) -> None:  # noqa: F811
    """No more documents are read than its steps need; the continuation skips the rows that were trained on."""
    read: list[int] = []

    def records() -> Iterator[dict[str, str]]:
        for number, text in enumerate(TEXTS * 50):
            read.append(number)
            yield {"text": text}

    monkeypatch.setattr("hf_posenc.training.corpus.BATCH", 100)
    source = TextSource((IterableDataset.from_generator(records),))

    def tuned(folder: Path, steps: int, **more: Any) -> Any:
        model = patch_model(llama(), "yarn", factor=FACTOR)
        return run(model, tokenizer, source, steps=6, save_every=2, out=folder, **more)

    class Killed(Exception):
        pass

    def kill(share: float, loss: float) -> None:
        if share > 0.6:
            raise Killed

    whole = tuned(tmp_path / "whole", 6)
    with pytest.raises(Killed):
        tuned(tmp_path / "killed", 6, progress=kill)
    again = tuned(tmp_path / "killed", 6, resume=True)
    for name, parameter in whole.model.named_parameters():
        assert torch.equal(parameter, again.model.get_parameter(name)), name
    assert [point.loss for point in again.curve] == [point.loss for point in whole.curve]
    assert max(read) < len(TEXTS) * 49


@pytest.mark.parametrize(("streaming", "trained"), [(False, "."), (True, "a.jsonl")])
def test_a_file_that_is_trained_on_and_held_out_is_told(streaming: bool, trained: str, tokenizer, tmp_path) -> None:  # noqa: F811
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    model = patch_model(llama(), "yarn", factor=FACTOR)
    texts = TextSource.of_names(tmp_path / trained, streaming=streaming)
    with pytest.warns(HeldOutOverlap):
        run(model, tokenizer, texts, steps=1, held_out=tmp_path / "a.jsonl")
    assert TextSource.of_names("hub:a:train").named() & TextSource.of_names(["hub:a:train", "hub:b"]).named()


def test_datasets_of_token_ids_are_rows(tokenizer) -> None:  # noqa: F811
    """The same as a data set of tensors, with labels or without."""
    ids = [[4 + (n * n + i) % 28 for i in range(TARGET)] for n in range(8)]
    rows = [{"input_ids": torch.tensor(row), "labels": torch.tensor(row)} for row in ids]

    class Tensors(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> Any:
            return rows[index]

    sets = [
        Tensors(),
        Dataset.from_dict({"input_ids": ids}),
        Dataset.from_dict({"input_ids": ids, "labels": ids, "n": ids}),
    ]
    losses = [run(patch_model(llama(), "yarn", factor=FACTOR), tokenizer, one, steps=2).curve for one in sets]
    assert [point.loss for point in losses[0]] == [point.loss for point in losses[1]] == [p.loss for p in losses[2]]
