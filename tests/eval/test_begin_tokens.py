"""A length counts every token that the model gets, with those that the tokenizer puts around a text.

A model that was trained with a begin token falls apart without one, and a window that forgets to count it is one token
longer than the length it is reported under. Read off the rows that reach the model, whatever task made them.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerFast

from hf_posenc.eval import evaluate
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.eval.lm.prefixes import frame_of, opened

from .conftest import SPECIAL, TRAINED, framing

LENGTH = 2 * TRAINED
EXACT = {"posenc_token_nll", "posenc_docs"}  # made of tokens; the others of whole texts
LOSSES = EXACT | {"posenc_ppl"}  # the others hide needles in filler of their own, whose sentences are short
TASKS: dict[str, dict[str, Any]] = {
    "posenc_ppl": {}, "posenc_passkey": {}, "posenc_token_nll": {}, "posenc_docs": {}, "posenc_niah_single": {},
}  # fmt: skip


@pytest.fixture
def rows(llama) -> list[list[int]]:
    """What the model reads."""
    seen: list[list[int]] = []

    def note(module: Any, args: Any, options: dict[str, Any]) -> None:
        seen.extend(options["input_ids"].tolist())

    llama.base_model.register_forward_pre_hook(note, with_kwargs=True)
    return seen


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("task", TASKS)
def test_inputs_have_the_requested_length(task: str, before: int, llama, tokenizer, text, rows) -> None:
    evaluate(
        llama, framing(tokenizer, before), tasks=[task], lengths=[LENGTH], samples=2, scored=16, keys=1, depths=[0.5],
        text=text if task in LOSSES else None, options=TASKS[task],
    )  # fmt: skip
    read = [row for row in rows if len(row) > 8]  # the last scored token is never read
    assert read
    for row in read:
        assert row[:before] == [0] * before
        assert row[before] != 0
        assert len(row) + 1 <= LENGTH
    longest = max(len(row) + 1 for row in read)
    assert longest == LENGTH if task in EXACT else longest > LENGTH - 40


@pytest.mark.parametrize(("before", "behind"), [(0, 0), (1, 0), (0, 1), (1, 1), (3, 2)])
def test_special_tokens_around_a_text(before: int, behind: int, tokenizer) -> None:
    made = framing(tokenizer, before, behind)
    end, sep = (tokenizer.convert_tokens_to_ids(name) for name in ("<end>", "<sep>"))
    assert frame_of(made) == ([end] * before, [sep] * behind)
    inside = tokenizer("The sky is blue.")["input_ids"]
    assert opened(made, "The sky is blue.") == [end] * before + inside
    assert opened(made, "") == [end] * before
    assert opened(made, "a") == [end] * before + tokenizer("a")["input_ids"]


SEP = SPECIAL.index("<sep>")
PAIRS = [("def f(x):", " return x"), ("import os", ".path"), ("a", "b")]


@pytest.fixture
def closing(tokenizer) -> PreTrainedTokenizerFast:
    return framing(tokenizer, 0, behind=1)


def test_the_whole_target_is_scored(llama, tokenizer, closing) -> None:
    ours = PosEncLM(llama, tokenizer=closing)
    assert ours.closing == [SEP]
    plain = PosEncLM(llama, tokenizer=tokenizer)
    assert plain.closing == []
    for pair in PAIRS:
        context, target = ours._encode_pair(*pair)
        assert (context, target) == plain._encode_pair(*pair)
        assert SEP not in context
    stock = HFLM(pretrained=llama, tokenizer=closing)  # control: the end token in the middle, the target cut short
    context, target = stock._encode_pair(*PAIRS[0])
    assert context[-1] == SEP


def test_tasks_and_generation(llama, tokenizer, closing) -> None:
    options = {"tasks": ["posenc_ppl"], "lengths": [64], "samples": 2, "scored": 16, "text": argparse.__file__}
    assert evaluate(llama, closing, **options).rows[0].value == pytest.approx(
        evaluate(llama, tokenizer, **options).rows[0].value, abs=1e-6
    )
    ids, mask = PosEncLM(llama, tokenizer=closing).tok_batch_encode(["one", "one two three"])
    assert not (ids[:, -1] == SEP).any()
    assert ids.shape == mask.shape
