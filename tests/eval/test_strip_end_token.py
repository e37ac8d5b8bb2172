"""A tokenizer that ends every text with an end token gives the numbers of one that does not."""

from __future__ import annotations

import argparse

import pytest
from lm_eval.models.huggingface import HFLM
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from hf_posenc.eval import evaluate
from hf_posenc.eval.lm.causal_lm import PosEncLM

PAIRS = [("def f(x):", " return x"), ("import os", ".path"), ("a", "b")]


@pytest.fixture
def closing(tokenizer) -> PreTrainedTokenizerFast:
    backend = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    end = tokenizer.convert_ids_to_tokens(1)
    backend.post_processor = TemplateProcessing(single=f"$A {end}", special_tokens=[(end, 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end, pad_token=end)


@pytest.fixture
def bare(closing) -> PreTrainedTokenizerFast:
    """The same without the end token."""
    backend = type(closing.backend_tokenizer).from_str(closing.backend_tokenizer.to_str())
    backend.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=closing.eos_token, pad_token=closing.pad_token)


def test_the_whole_target_is_scored(llama, bare, closing) -> None:
    ours = PosEncLM(llama, tokenizer=closing)
    assert ours.closing == [1]
    plain = PosEncLM(llama, tokenizer=bare)
    assert plain.closing == []
    for pair in PAIRS:
        context, target = ours._encode_pair(*pair)
        assert (context, target) == plain._encode_pair(*pair)
        assert 1 not in context
    stock = HFLM(pretrained=llama, tokenizer=closing)  # control: the end token in the middle, the target cut short
    context, target = stock._encode_pair(*PAIRS[0])
    assert context[-1] == 1


def test_tasks_and_generation(llama, bare, closing) -> None:
    options = {"tasks": ["posenc_ppl"], "lengths": [64], "samples": 2, "scored": 16, "text": argparse.__file__}
    assert evaluate(llama, closing, **options).rows[0].value == pytest.approx(
        evaluate(llama, bare, **options).rows[0].value, abs=1e-6
    )
    ids, mask = PosEncLM(llama, tokenizer=closing).tok_batch_encode(["one", "one two three"])
    assert not (ids[:, -1] == 1).any()
    assert ids.shape == mask.shape
