"""Tokenizers, documents and lengths that cannot be measured: an error that says what to do, or the right number."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import BeyondTable, LengthTooShort, NotMeasurable, TextTooShort
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.eval.texts.stdlib_source import module_text

from .conftest import TRAINED
from .test_parity import requests

TASKS = ["posenc_ppl", "posenc_token_nll", "posenc_copy", "posenc_passkey"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(module_text("bisect") * 2, encoding="utf-8")
    return path


@pytest.fixture
def endless(tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer with neither a begin nor an end token."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, pad_token="<pad>")


def test_a_tokenizer_without_begin_token(llama, tokenizer, text) -> None:
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<end>")
    options = {
        "tasks": TASKS,
        "lengths": [TRAINED],
        "samples": 2,
        "keys": 1,
        "depths": [0.5],
        "scored": 16,
        "text": text,
    }
    assert evaluate(llama, plain, **options).rows == evaluate(llama, tokenizer, **options).rows


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


def test_ids_need_no_special_tokens_at_all(llama, endless, text) -> None:
    rows = evaluate(
        llama, endless, tasks=["posenc_token_nll", "posenc_copy"], lengths=[64], samples=2, text=text, scored=8
    ).rows
    assert {row.task for row in rows} == {"posenc_token_nll", "posenc_copy"}
    assert all(math.isfinite(row.value) for row in rows)


@pytest.mark.parametrize("document", ["", "<end>"], ids=["nothing", "only its begin token"])
def test_an_empty_document(document: str, llama, tokenizer) -> None:
    with pytest.raises(TextTooShort, match="Document 1 is empty"):
        PosEncLM(llama, tokenizer=tokenizer).loglikelihood_rolling(
            requests("loglikelihood_rolling", [("full",), (document,)])
        )


def test_an_empty_text_file(llama, tokenizer, tmp_path) -> None:
    (tmp_path / "empty.txt").touch()
    for task in ("posenc_ppl", "posenc_token_nll", "posenc_sliding_ppl"):
        with pytest.raises(TextTooShort, match="got 0"):
            evaluate(
                llama, tokenizer, tasks=[task], lengths=[64], samples=1, scored=8, text=tmp_path / "empty.txt",
                options={"stride": 8},
            )  # fmt: skip


def test_a_length_below_the_prompts_own_size(llama, tokenizer) -> None:
    for task in ("posenc_passkey", "posenc_passkey_gen"):
        with pytest.raises(LengthTooShort, match="length 16"):
            evaluate(llama, tokenizer, tasks=[task], lengths=[16], keys=1, depths=[0.5])


def test_rolling_past_the_window_raises_or_uses_windows(llama, tokenizer) -> None:
    """Cut into windows only where that was asked for; then as lm-eval does, each token once."""
    from lm_eval.models.huggingface import HFLM

    asked = requests("loglikelihood_rolling", [("The sky is blue. " * 60,)])
    stock = HFLM(llama, tokenizer=tokenizer).loglikelihood_rolling(asked, disable_tqdm=True)
    ours = PosEncLM(llama, tokenizer=tokenizer, on_overflow="truncate").loglikelihood_rolling(asked)
    assert ours == pytest.approx(stock, rel=1e-6)
    assert torch.isfinite(torch.tensor(ours)).all()


def test_a_length_past_the_table_is_refused_before_anything_is_scored(gpt2, tokenizer) -> None:
    seen: list[int] = []
    with pytest.raises(BeyondTable, match=f"{TRAINED} positions, and {2 * TRAINED} are requested"):
        evaluate(gpt2, tokenizer, lengths=[TRAINED, 2 * TRAINED], on_request=lambda: seen.append(1))
    assert not seen
