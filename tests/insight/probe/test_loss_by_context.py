"""Losses against those of transformers, and conclusions from given losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import load_starter
from hf_posenc.errors import BackendCannotCarry, SchemeNotDefined
from hf_posenc.eval.errors import LengthTooShort, TextTooShort
from hf_posenc.insight.probe import LossByContext, probe
from hf_posenc.insight.probe.loss_by_context import SpecialTokenCounts, loss_by_context, scores
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.state import is_patched

Build = Callable[..., Any]


def measured(columns: dict[int, list[float]]) -> LossByContext:
    rows = tuple(zip(*columns.values(), strict=True))
    return LossByContext(tuple(columns), rows)


def test_more_text_helps_then_nothing_then_hurts() -> None:
    found = measured({64: [3.0, 3.2, 2.9], 128: [2.5, 2.6, 2.4], 256: [2.49, 2.61, 2.39], 512: [3.5, 3.4, 3.6]})
    assert found.used_length == 128  # 256 is lower by less than its error
    assert found.hurts_from == 512


def test_windows_are_paired() -> None:
    """Windows far apart, each with the same small gain: sure, though no error bar of a mean would say so."""
    found = measured({64: [1.0, 5.0, 9.0], 128: [0.9, 4.89, 8.91]})
    assert found.used_length == 128


def test_a_causal_loss_is_transformers_own(build: Build, ids: Tensor) -> None:
    model = build("llama")
    with torch.no_grad():
        found = scores(model, ids, 1)
    assert found.shape == (47,)
    assert float(-found.mean()) == pytest.approx(model(ids, labels=ids).loss.item(), rel=1e-5)


def test_a_shorter_text_is_the_end_of_a_longer_one(build: Build, ids: Tensor) -> None:
    model = build("llama")
    found = loss_by_context(model, [ids], (16, 48), 8, SpecialTokenCounts(1, 0))
    short = torch.cat((ids[:, :1], ids[:, -15:]), dim=1)
    with torch.no_grad():
        logits = model(short).logits[0, -9:-1].log_softmax(-1)
    wanted = -float(logits.gather(-1, short[0, -8:, None]).mean())
    assert found.losses[0][0] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_the_used_length_of_a_starter() -> None:
    """Trained on 256 tokens: text hurts beyond, and YaRN brings heads back to where they looked."""
    model, tokenizer = load_starter("llama")
    found = probe(model, tokenizer, scheme="yarn", factor=2, samples=8, rows=64)
    before, after = found.variants
    assert before.loss is not None
    assert after.loss is not None
    assert before.loss.hurts_from == 512
    assert after.loss.hurts_from is None
    assert found.moved is not None
    assert float(found.moved.mean()) > 0.1
    previous = [head for head in after.heads if head.kind == "previous token"]
    assert previous
    assert all(before.heads[head.layer * 6 + head.head].share < head.share for head in previous)
    assert not is_patched(model)


def test_the_patch_is_removed_after_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_starter("llama")
    with pytest.raises(SchemeNotDefined):
        probe(model, tokenizer, scheme="learned_interp", length=128, samples=1, rows=8)

    def refuse(*_: Any) -> None:
        raise BackendCannotCarry("no")

    monkeypatch.setattr("hf_posenc.insight.probe.variant.changes", refuse)
    with pytest.raises(BackendCannotCarry):
        probe(model, tokenizer, scheme="yarn", factor=2, length=128, samples=1, rows=8)
    assert not is_patched(model)


@pytest.mark.slow
def test_a_table_is_evaluated_up_to_its_end() -> None:
    """GPT-2's ends at 256, so what a scheme does at 512 has nothing to be compared with."""
    model, tokenizer = load_starter("gpt2")
    found = probe(model, tokenizer, scheme="alibi", factor=2, samples=1, rows=16)
    assert [variant.length for variant in found.variants] == [256, 512]
    assert found.moved is None


@pytest.mark.slow
def test_a_patched_model_is_probed_unchanged() -> None:
    model, tokenizer = load_starter("llama")
    patch_model(model, "yarn", factor=2)
    found = probe(model, tokenizer, samples=1, rows=16)
    assert [(variant.label, variant.length) for variant in found.variants] == [("yarn", 512)]
    assert is_patched(model)


@pytest.mark.slow
def test_a_peft_model_is_probed() -> None:
    peft = pytest.importorskip("peft", reason="needs the extra train")
    model, tokenizer = load_starter("llama")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    settings = {"length": 128, "samples": 1, "rows": 16}
    plain, found = (probe(one, tokenizer, **settings) for one in (load_starter("llama")[0], wrapped))
    assert found.variants[0].heads == plain.variants[0].heads  # a fresh adapter changes nothing
    assert found.variants[0].loss is not None


def test_an_encoder_has_no_loss_of_last_tokens() -> None:
    model, tokenizer = load_starter("bert")
    assert probe(model, tokenizer, length=128, samples=1, rows=8).variants[0].loss is None


def test_refusals(tmp_path: Any) -> None:
    model, tokenizer = load_starter("llama")
    with pytest.raises(LengthTooShort):
        probe(model, tokenizer, length=40)
    short = tmp_path / "short.txt"
    short.write_text("one two three", encoding="utf-8")
    with pytest.raises(TextTooShort):
        probe(model, tokenizer, text=short)
