"""The example of long retrieval: what it asks, how it counts, and what a tuned encoder imitates."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from math import log2
from types import ModuleType

import pytest
import torch

from hf_posenc import load_starter

from ..example_modules import example_module

NOVELS = [[f"In part {n} of book {book} they went on with what had begun." for n in range(900)] for book in "AB"]
LENGTHS = (150, 500)


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The script; the modules beside it are forgotten with it."""
    with example_module("long_retrieval") as module:
        yield module
    for name in ("long_retrieval_texts", "long_retrieval_tuning", "common", "training_state"):
        sys.modules.pop(name, None)


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("task", ["passkey", "needle"])
def test_documents_differ_in_hidden_sentences_at_the_asked_depths(example: ModuleType, task: str, length: int) -> None:
    asked = example.documents(task, 4, length, words, NOVELS)
    rests = set()
    for one in asked:
        assert length - 20 < words(one.text) <= length
        rests.add(re.sub(r"The code of \w+ is \d+\. ?", "", one.text)[:150])
        for query, depth in zip(one.queries, one.depths, strict=True):
            key = query.split()[3]
            before, needle, after = re.split(rf"(The code of {key} is \d{{7}}\.)", one.text)
            assert needle
            assert words(before) / (words(before) + words(after)) == pytest.approx(depth, abs=0.15)
            assert sum(key in other.text for other in asked) == 1
    assert len(rests) == 1  # the haystack is the same
    assert len({query for one in asked for query in one.queries}) == 16


@pytest.mark.parametrize("length", LENGTHS)
def test_a_novel_s_document_has_all_around_its_queries_but_not_them(example: ModuleType, length: int) -> None:
    for number, one in enumerate(example.documents("novels", 4, length, words, NOVELS)):
        hidden = [int(place) for query in one.queries for place in re.findall(r"part (\d+)", query)]
        kept = [int(place) for place in re.findall(r"part (\d+)", one.text)]
        assert set(re.findall(r"book (\w)", one.text)) == {"AB"[number % 2]}
        assert sorted({*kept, *hidden}) == list(range(number // 2 * 450, number // 2 * 450 + len(kept) + 4))
        assert not set(kept) & set(hidden)
        assert length - 13 < words(one.text) <= length
        for place, depth in zip(hidden, one.depths, strict=True):
            assert (place - number // 2 * 450) / (len(kept) + 4) == pytest.approx(depth, abs=0.1)


def test_ranks_against_a_count_by_hand(example: ModuleType) -> None:
    assert [example.rank([0.2, 0.9, 0.5], own) for own in range(3)] == [3, 1, 2]
    assert example.rank([0.5] * 7, 3) == 7, "documents that cannot be told apart are not found"
    ranks = [1, 2, 4, 11]
    assert [example.ndcg_of(rank) for rank in ranks] == pytest.approx([1.0, 1 / log2(3), 1 / log2(5), 0.0])
    assert example.scores([ranks[:2], ranks[2:]]) == "recall@1 25 %, nDCG@10 0.52"  # (1 + 0.631 + 0.431) / 4 = 0.515


@pytest.mark.slow
def test_vectors_are_means_over_tokens(example: ModuleType) -> None:
    model, tokenizer = load_starter("bert")
    encoder = example.Encoder(model.base_model.eval(), tokenizer, 256)
    text = "def value(self): return the list of names " * 40
    ids = tokenizer(text, verbose=False)["input_ids"]
    inner = [ids[1:-1][start : start + 254] for start in range(0, len(ids) - 2, 254)]
    assert len(inner) > 1
    with torch.no_grad():
        states = [model.base_model(torch.tensor([[ids[0], *part, ids[-1]]])).last_hidden_state[0] for part in inner]
    of_chunks = torch.stack([state.mean(0) / state.mean(0).norm() for state in states])
    whole = torch.cat(states).mean(0)
    torch.testing.assert_close(encoder.vectors(text, "truncated"), of_chunks[:1])
    torch.testing.assert_close(encoder.vectors(text, "chunks: best"), of_chunks)
    torch.testing.assert_close(encoder.vectors(text, "chunks: mean")[0], whole / whole.norm())
    assert not torch.allclose(encoder.vectors(text, "chunks: mean"), of_chunks[:1], atol=1e-3)
