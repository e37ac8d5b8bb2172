"""Encoder–decoders as a whole: both stacks patched, saved, loaded, adapted and removed together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from hf_posenc import describe, disable_auto, enable_auto, from_pretrained, patch_model, scheme_of, unpatch_model
from hf_posenc.errors import (
    AlreadyPatched,
    CheckpointMismatch,
    NotPatched,
    OptionOutOfRange,
    SchemeNotDefined,
    UnsupportedModel,
)

from .encoder_decoders import FAMILIES, SOURCE, STACKS, TARGET, built, logits, stack_of, token_by_token
from .test_families import assert_close
from .tiny import tokens

families = pytest.mark.parametrize("name", FAMILIES)


@families
@pytest.mark.parametrize("scheme", ["yarn", "t5", "learned"])
def test_patched_saved_and_loaded_as_a_whole(name: str, scheme: str, tmp_path: Path) -> None:
    """Both stacks have the scheme and a proof each; the checkpoint carries it, by our loader and the Auto classes."""
    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    stock, config = logits(model, source, target), model.config
    patch_model(model, scheme, **({"factor": 2} if scheme == "yarn" else {"trained_length": 64}))
    report = describe(model)
    assert (report.model, list(report.stacks)) == (type(model).__name__, STACKS)
    assert sum(report.touched.values()) == sum(sum(part.touched.values()) for part in report.stacks.values())
    assert {part.model for part in report.stacks.values()} == {type(stack_of(model, one)).__name__ for one in STACKS}
    if (name, scheme) != ("bart", "learned"):  # which keeps its tables
        assert {part.proof.verdict for part in report.stacks.values()} == {"moved"}
    assert all(part in str(report) for part in ("encoder: ", "decoder: "))
    whole = logits(model, source, target)
    assert_close(token_by_token(model, source, target), whole)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"hf_posenc\.from_pretrained"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    enable_auto()
    try:
        others = [from_pretrained(tmp_path), AutoModelForSeq2SeqLM.from_pretrained(tmp_path)]
    finally:
        disable_auto()
    for loaded in others:
        assert type(loaded) is type(model)
        assert describe(loaded) == report
        assert_close(logits(loaded.eval(), source, target), whole)
    unpatch_model(model)
    assert torch.equal(logits(model, source, target), stock)
    assert model.config is config
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]
    assert_close(logits(unpatch_model(others[0]), source, target), stock)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_both_stacks_or_none(name: str) -> None:
    """A scheme for decoders fails on the encoder; one stack that is patched already is left as it is."""
    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    stock = logits(model, source, target)
    with pytest.raises(SchemeNotDefined, match="needs a decoder"):
        patch_model(model, "t5+sinks")
    with pytest.raises(OptionOutOfRange, match="layers are 0 … 1"):  # of the decoder, after the encoder was patched
        patch_model(model, "alibi", layers={"2": "none"})
    assert torch.equal(logits(model, source, target), stock)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]
    patch_model(model.get_decoder(), "t5")
    with pytest.raises(AlreadyPatched, match=r"(Stack|Decoder) carries scheme"):
        patch_model(model, "alibi")
    with pytest.raises(NotPatched, match="encoder none, decoder t5"):
        describe(model)
    assert describe(model.get_decoder()).scheme == "t5"
    unpatch_model(model)
    assert torch.equal(logits(model, source, target), stock)
    with pytest.raises(NotPatched):
        unpatch_model(model)
    with pytest.raises(UnsupportedModel, match=r"model\.get_encoder\(\) or model\.get_decoder\(\)"):
        scheme_of(model)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_checkpoint_that_would_lose_the_scheme_is_refused(name: str, tmp_path: Path) -> None:
    model = built(name)
    patch_model(model.get_decoder(), "alibi")
    with pytest.raises(CheckpointMismatch, match="patch both stacks at once"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))
    model.state_dict()  # which says nothing of positions either way
    unpatch_model(model)
    model.save_pretrained(tmp_path)
    patch_model(model, "alibi")
    unpatch_model(model.get_encoder())
    with pytest.raises(CheckpointMismatch):
        model.save_pretrained(tmp_path)


@pytest.mark.parametrize("half", ["encoder", "decoder"])
@pytest.mark.parametrize("scheme", ["sinusoidal", "binary"])
@torch.no_grad()
def test_codes_of_bart_begin_behind_the_padding(scheme: str, half: str) -> None:
    """BART numbers columns, and takes no other numbers: a code of the scheme's own is counted on real tokens."""
    model, ids, pads = patch_model(built("bart"), scheme), tokens(20), 4
    padded, mask = ids.clone(), torch.ones_like(ids)
    padded[0, :pads], mask[0, :pads] = 0, 0
    stack = stack_of(model, half)
    call = {} if half == "encoder" else {"use_cache": True}
    found = stack(padded, attention_mask=mask, **call)
    alone = stack(ids[:1, pads:], **call)
    torch.testing.assert_close(found.last_hidden_state[0, pads:], alone.last_hidden_state[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found.last_hidden_state[1], stack(ids)[0][1], atol=1e-5, rtol=0)
    if half == "decoder":
        step, longer = torch.full((2, 1), 7), torch.cat([mask, mask[:, -1:]], dim=1)
        one = stack(step, attention_mask=longer, past_key_values=found.past_key_values).last_hidden_state[0]
        two = stack(step[:1], past_key_values=alone.past_key_values).last_hidden_state[0]
        torch.testing.assert_close(one, two, atol=1e-5, rtol=0)
