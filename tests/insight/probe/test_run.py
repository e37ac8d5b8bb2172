"""Probes of whole models: what a patch moves, how a model is left, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hf_posenc import load_starter
from hf_posenc.errors import BackendCannotCarry, SchemeNotDefined
from hf_posenc.eval.errors import LengthTooShort, TextTooShort
from hf_posenc.insight.probe import probe
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.state import is_patched


@pytest.mark.slow
def test_yarn_brings_heads_back_to_where_they_looked() -> None:
    model, tokenizer = load_starter("llama")
    found = probe(model, tokenizer, scheme="yarn", factor=2, rows=64)
    before, after = found.variants
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


def test_refusals(tmp_path: Any) -> None:
    model, tokenizer = load_starter("llama")
    with pytest.raises(LengthTooShort):
        probe(model, tokenizer, length=16)
    short = tmp_path / "short.txt"
    short.write_text("one two three", encoding="utf-8")
    with pytest.raises(TextTooShort):
        probe(model, tokenizer, text=short)
