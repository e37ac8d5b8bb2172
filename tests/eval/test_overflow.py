"""An over-long request is an error; lm-eval's own ``hf`` cuts it and says so in a log at most."""

from __future__ import annotations

import pytest
from lm_eval.models.huggingface import HFLM
from transformers import GPT2Config, GPT2LMHeadModel

from hf_posenc.errors import RequestTooLong, UnknownOption
from hf_posenc.eval.errors import BeyondTable, TaskOptionOutOfRange
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
