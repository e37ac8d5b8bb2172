"""An over-long request is an error, where lm-eval's own ``hf`` cuts it; so is what cannot be measured."""

from __future__ import annotations

import math

import pytest
import torch
from lm_eval.models.huggingface import HFLM
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from hf_posenc.errors import RequestTooLong, UnknownOption
from hf_posenc.eval import evaluate
from hf_posenc.eval.errors import BeyondTable, NotMeasurable, TaskOptionOutOfRange, TextTooShort
from hf_posenc.eval.lm.causal_lm import PosEncLM
from hf_posenc.eval.lm.masked_lm import PosEncMLM

from .conftest import TRAINED
from .test_parity import requests

LONG = "The pass key is 71432. " + "The grass is green. " * 60
REQUESTS = {
    "loglikelihood": (LONG, " yes"),
    "loglikelihood_rolling": (LONG,),
    "generate_until": (LONG, {"until": ["\n"], "max_gen_toks": 8}),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_too_long_raises(kind: str, llama, tokenizer) -> None:
    lm = PosEncLM(llama, tokenizer=tokenizer)
    with pytest.raises(RequestTooLong, match=rf"{kind} request of \d+ tokens exceeds max_length {TRAINED}"):
        getattr(lm, kind)(requests(kind, [REQUESTS[kind]]))


def test_generation_past_a_table_is_refused_before_it_runs(tokenizer) -> None:
    """The unpatched GPT-2 itself raises an index error there; its last new token is never an input."""
    rows = len(tokenizer(LONG)["input_ids"]) + 7
    config = GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=len(tokenizer), n_positions=rows)
    lm = PosEncLM(GPT2LMHeadModel(config), tokenizer=tokenizer, max_length=2 * rows)
    for new in (8, 9):
        asked = requests("generate_until", [(LONG, {"until": ["never"], "max_gen_toks": new})])
        if new == 8:
            assert len(lm.generate_until(asked)) == 1
            continue
        with pytest.raises(BeyondTable, match=rf"learned {rows} positions, and {rows + 1} are .+ up to 9 new ones"):
            lm.generate_until(asked)


def test_exactly_full_is_allowed(llama, tokenizer) -> None:
    """The last token is only predicted, never read: ``max_length`` tokens of input, one more of target."""
    ids = tokenizer(LONG)["input_ids"]
    lm = PosEncLM(llama, tokenizer=tokenizer)
    fits = [(("", ""), ids[:TRAINED], ids[TRAINED : TRAINED + 1])]
    assert lm._loglikelihood_tokens(fits)[0][0] < 0
    with pytest.raises(RequestTooLong):
        lm._loglikelihood_tokens([(("", ""), ids[: TRAINED + 1], ids[TRAINED + 1 : TRAINED + 2])])


def test_truncation_on_request_is_that_of_hf(llama, tokenizer) -> None:
    request = requests("loglikelihood", [REQUESTS["loglikelihood"]])
    ours = PosEncLM(llama, tokenizer=tokenizer, on_overflow="truncate").loglikelihood(request)
    assert ours[0][0] == pytest.approx(HFLM(llama, tokenizer=tokenizer).loglikelihood(request)[0][0], rel=1e-6)


def test_masked_requests_are_never_cut(bert, framed_tokenizer) -> None:
    lm = PosEncMLM(bert, tokenizer=framed_tokenizer, on_overflow="truncate")
    with pytest.raises(RequestTooLong, match="masked request"):
        lm.loglikelihood(requests("loglikelihood", [REQUESTS["loglikelihood"]]))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_overflow": "ignore"}, TaskOptionOutOfRange),
        ({"factor": 4}, UnknownOption),  # of what scheme?
        ({"beta_fast": 16}, UnknownOption),
        ({"peft": "somewhere"}, UnknownOption),  # lm-eval ignores it with a live model
    ],
    ids=str,
)
def test_what_would_be_ignored_is_refused(options: dict, error: type[Exception], llama, tokenizer) -> None:
    with pytest.raises(error):
        PosEncLM(llama, tokenizer=tokenizer, **options)


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
            llama,
            endless,
            tasks=["posenc_passkey"],
            **options | {"lengths": [TRAINED], "keys": 1, "text": None, "options": {"scoring": "generate"}},
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
