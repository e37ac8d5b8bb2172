"""Patched anew for every length: the numbers of doing it by hand, and the model as it was."""

from __future__ import annotations

import pytest
import torch

from hf_posenc import is_patched, patch_model, unpatch_model
from hf_posenc.eval import evaluate
from hf_posenc.eval.comparison.refit_per_length import RefittedLM
from hf_posenc.eval.errors import LengthTooShort
from hf_posenc.eval.texts.stdlib_source import module_text
from hf_posenc.patching.state import scheme_of

from .conftest import TRAINED

LENGTHS = [TRAINED, 2 * TRAINED, 4 * TRAINED]


def test_each_length_has_its_own_factor(llama, tokenizer, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(module_text("bisect") * 2, encoding="utf-8")
    options = {"tasks": ["posenc_ppl"], "samples": 2, "scored": 16, "text": text, "longest": LENGTHS[-1]}
    ids = torch.arange(40)[None]
    before = llama(ids).logits
    refitted = evaluate(RefittedLM(llama, fit="pi", lengths=LENGTHS, tokenizer=tokenizer), lengths=LENGTHS, **options)
    assert torch.equal(llama(ids).logits, before)
    by_hand = []
    for length in LENGTHS:
        patch_model(llama, "pi", target_length=length)
        by_hand += evaluate(llama, tokenizer, lengths=[length], **options).rows
        unpatch_model(llama)
    losses = {r.length: r.value for r in by_hand if r.metric == "nll"}
    assert {r.length: r.value for r in refitted.rows if r.metric == "nll"} == pytest.approx(losses, rel=1e-6)
    assert {r.scheme for r in refitted.rows} == {"pi"}
    assert refitted.raw["config"]["posenc_scheme"] == "pi"


def test_options_may_follow_the_length(llama, tokenizer) -> None:
    def options_at(length: int) -> dict[str, float]:
        return {"multiplier": length / TRAINED}

    lm = RefittedLM(llama, fit="dynamic_ntk", lengths=LENGTHS, options_at=options_at, tokenizer=tokenizer)
    for length in LENGTHS:
        with lm.under(length):
            assert scheme_of(llama).multiplier == length / TRAINED
    assert not is_patched(llama)


def test_a_length_that_was_not_requested_raises(llama, tokenizer) -> None:
    lm = RefittedLM(llama, fit="pi", lengths=LENGTHS, tokenizer=tokenizer)
    with pytest.raises(LengthTooShort, match="513 tokens"):
        lm.length_of(4 * TRAINED + 1)
