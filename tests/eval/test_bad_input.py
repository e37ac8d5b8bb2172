"""Tokenizers, documents and lengths that cannot be measured: an error that says what to do, or the right number."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import NotMeasurable, TextTooShort
from hf_posenc.eval.lm.causal_lm import PosEncLM

from .conftest import TRAINED
from .test_parity import requests


@pytest.fixture
def endless(tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer with neither a begin nor an end token."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, pad_token="<pad>")


def test_a_tokenizer_without_any_end(llama, endless, text) -> None:
    with pytest.raises(NotMeasurable, match="prefix_token_id"):
        evaluate(llama, endless, tasks=["posenc_ppl"], lengths=[64], samples=2, scored=16, text=text)
    options = {"lengths": [64], "samples": 2, "scored": 16, "text": text, "prefix_token_id": 0}
    rows = evaluate(llama, endless, tasks=["posenc_ppl"], **options).rows
    assert {(row.metric, row.length) for row in rows} == {("nll", 64), ("ppl", 64)}
    assert all(math.isfinite(row.value) for row in rows)
    with pytest.raises(NotMeasurable, match="eos_token"):
        evaluate(
            llama, endless, tasks=["posenc_passkey_gen"], **options | {"lengths": [TRAINED], "keys": 1, "text": None}
        )


@pytest.mark.parametrize("document", ["", "<end>"], ids=["nothing", "only its begin token"])
def test_an_empty_document(document: str, llama, tokenizer) -> None:
    with pytest.raises(TextTooShort, match="Document 1 is empty"):
        PosEncLM(llama, tokenizer=tokenizer).loglikelihood_rolling(
            requests("loglikelihood_rolling", [("full",), (document,)])
        )


def test_rolling_past_the_window_raises_or_uses_windows(llama, tokenizer) -> None:
    """Cut into windows only where that was asked for; then as lm-eval does, each token once."""
    from lm_eval.models.huggingface import HFLM

    asked = requests("loglikelihood_rolling", [("The sky is blue. " * 60,)])
    stock = HFLM(llama, tokenizer=tokenizer).loglikelihood_rolling(asked, disable_tqdm=True)
    ours = PosEncLM(llama, tokenizer=tokenizer, on_overflow="truncate").loglikelihood_rolling(asked)
    assert ours == pytest.approx(stock, rel=1e-6)
    assert torch.isfinite(torch.tensor(ours)).all()
