"""A tokenizer that ends every text with an end token gives the numbers of one that does not."""

from __future__ import annotations

import argparse

import pytest
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerFast

from hf_posenc.eval import evaluate
from hf_posenc.eval.lm.causal_lm import PosEncLM

from .conftest import SPECIAL, framing

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
