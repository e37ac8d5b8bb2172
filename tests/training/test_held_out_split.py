"""The end of a training text is held out: what is measured on was not trained on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from hypothesis import given
from hypothesis import strategies as st

from hf_posenc import patch_model
from hf_posenc.errors import LengthContradiction
from hf_posenc.training import HeldOutSplit, Training
from hf_posenc.training.rows import split_end
from hf_posenc.training.run_inputs import read_inputs

from .test_finetune import FACTOR, TARGET, TEXTS, TRAINED, llama, run, tokenizer  # noqa: F401 (a fixture)
from .test_rows import corpus_of

WINDOWS = 3
NEEDED = TARGET + (WINDOWS - 1) * (TRAINED // 2)
"""Tokens of three windows of the longest length, of which half of the shortest are scored."""


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12), needed=st.integers(1, 80))
def test_the_two_parts_are_the_text(sizes: list[int], needed: int) -> None:
    documents = [torch.arange(size) + 100 * number for number, size in enumerate(sizes)]
    corpus = corpus_of(documents)
    first, end = split_end(corpus, needed)
    if needed > sum(sizes) / 4:
        assert end is None
        return
    assert end is not None
    assert torch.equal(torch.cat((first.tokens, end.tokens)), corpus.tokens)
    assert len(end.tokens) == max(needed, round(0.05 * sum(sizes)))
    border = len(first.tokens)
    cut = {border} if border not in corpus.starts.tolist() else set()
    assert {*first.starts.tolist(), *(end.starts + border).tolist()} == {*corpus.starts.tolist()} | cut
    assert end.starts[0] == 0


def inputs_of(tokenizer: Any, texts: list[str], held_out: HeldOutSplit, **settings: Any) -> Any:  # noqa: F811
    model = patch_model(llama(), "yarn", factor=FACTOR)
    training = Training(length=TARGET, steps=1, rank=2, learning_rate=1e-3, eval_windows=WINDOWS, **settings)
    return read_inputs(model, tokenizer, texts, training, held_out=held_out)


@pytest.mark.parametrize("packing", ["joined", "separate"])
def test_no_window_reads_a_token_that_rows_have(tokenizer: Any, packing: str) -> None:  # noqa: F811
    read = inputs_of(tokenizer, TEXTS, HeldOutSplit(), packing=packing)
    tokens = [token for text in TEXTS for token in [*tokenizer(text)["input_ids"], 1]]
    assert read.held_out_tokens == max(NEEDED, round(0.05 * len(tokens)))
    trained = torch.cat([row["input_ids"] for row in read.rows]).tolist()
    left = len(tokens) - read.held_out_tokens
    assert trained == tokens[: left // TARGET * TARGET]
    longest = read.windows[str(TARGET)]
    assert longest[0]["input_ids"].tolist() == tokens[left : left + TARGET]
    assert longest[WINDOWS - 1]["input_ids"].tolist() == tokens[-TARGET:]


def test_a_short_text_is_measured_on_another(tokenizer: Any) -> None:  # noqa: F811
    """It is trained on whole, and where there is no other text it is refused."""
    short = [" ".join(["w1"] * (4 * NEEDED - 2))]  # and its end
    read = inputs_of(tokenizer, short, HeldOutSplit(otherwise=TEXTS))
    assert read.held_out_tokens == 0
    assert len(read.rows) == (4 * NEEDED - 1) // TARGET
    assert read.windows[str(TARGET)][0]["input_ids"].tolist() == tokenizer(TEXTS[0])["input_ids"][:TARGET]
    with pytest.raises(LengthContradiction, match="cannot be held out"):
        inputs_of(tokenizer, short, HeldOutSplit())


def test_a_run_says_what_it_held_out(tokenizer: Any, tmp_path: Any) -> None:  # noqa: F811
    model = patch_model(llama(), "yarn", factor=FACTOR)
    tuned = run(model, tokenizer, held_out=HeldOutSplit(), eval_windows=WINDOWS, out=tmp_path / "run", steps=2)
    assert tuned.start.held_out_tokens >= NEEDED
    assert f"held out: the last {tuned.start.held_out_tokens:,} tokens of the text" in str(tuned.start)
    assert {TRAINED, TARGET} <= set(tuned.curve[-1].held_out)
    resumed = run(
        patch_model(llama(), "yarn", factor=FACTOR), tokenizer, held_out=HeldOutSplit(), eval_windows=WINDOWS,
        out=tmp_path / "run", steps=3, resume=True,
    )  # fmt: skip
    assert resumed.curve[-1].step == 3
