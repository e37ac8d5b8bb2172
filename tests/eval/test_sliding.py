"""Sliding windows: every token once, with as much before it as promised."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_posenc.eval import evaluate
from hf_posenc.eval.tasks.perplexity import slid

from .conftest import TRAINED

LENGTHS = [64, TRAINED, 2 * TRAINED]
OPTIONS = {"stride": 32, "stretch": 80}
SMALL = {"tasks": ["posenc_sliding_ppl"], "lengths": LENGTHS, "samples": 2, "log_samples": True}


@given(stride=st.integers(1, 40), more=st.integers(1, 100), before=st.integers(0, 200), stretch=st.integers(1, 300))
def test_windows_have_the_promised_sizes(stride: int, more: int, before: int, stretch: int) -> None:
    length, first = stride + more, before + 1
    spans = slid(first, first + stretch, length, stride)
    scored = [token for _, start, end in spans for token in range(start, end)]
    assert scored == list(range(first, first + stretch))  # each once, in order
    for start, begin, end in spans:
        assert 0 <= start < begin
        assert end - start <= length
        assert end - start == length or start == 0
    assert all(end - begin <= stride for _, begin, end in spans[1:])


def test_from_the_start_it_is_the_loop_of_the_papers() -> None:
    """The loop of transformers' own guide, "Perplexity of fixed-length models"."""
    tokens, length, stride, previous, expected = 1000, 128, 32, 0, []
    for begin in range(0, tokens, stride):
        end = min(begin + length, tokens)
        expected.append((begin, max(previous, 1), end))  # the first token has nothing before it
        previous = end
        if end == tokens:
            break
    assert slid(1, tokens, length, stride) == [(max(0, end - length), first, end) for _, first, end in expected]


@pytest.mark.parametrize("from_start", [False, True])
def test_numbers_are_those_of_plain_forwards(from_start: bool, llama, tokenizer, text) -> None:
    evaluation = evaluate(llama, tokenizer, text=text, options=OPTIONS | {"from_start": from_start}, **SMALL)
    rows = {(r.metric, r.length): r for r in evaluation.rows}
    samples = evaluation.raw["samples"]["posenc_sliding_ppl"]
    first = 1 if from_start else LENGTHS[-1] - 32
    for length in LENGTHS:
        found = []
        for sample in samples:
            ids, total, scored = sample["arguments"][0][2], 0.0, first
            while scored < first + 80:
                end = min(first + 80, max(first + 32, length) if scored == first else scored + 32)
                row = torch.tensor([ids[max(0, end - length) : end]])
                logits = llama(row).logits[0, :-1].double()[-(end - scored) :]
                total += torch.nn.functional.cross_entropy(logits, row[0, -(end - scored) :], reduction="sum").item()
                scored = end
            found.append(total / 80)
        assert rows["nll", length].value == pytest.approx(sum(found) / 2, rel=1e-5)
