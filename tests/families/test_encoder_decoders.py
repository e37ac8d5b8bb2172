"""Encoder–decoders: one stack works inside its model; both are patched, saved, loaded and removed together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.models.t5 import modeling_t5

from hf_posenc import describe, from_pretrained, patch_model, scheme_of, unpatch_model
from hf_posenc.errors import (
    AlreadyPatched,
    CheckpointMismatch,
    NotPatched,
    OptionOutOfRange,
    SchemeNotDefined,
    UnsupportedModel,
)

from ..small_models import auto_classes
from .test_families import assert_close
from .tiny import padded, tiny_encoder_decoder, tokens

INTERFACE = hasattr(modeling_t5, "eager_attention_forward")  # which T5 did not use before
FAMILIES = ["t5", "umt5", "bart"]
STACKS = ["encoder", "decoder"]
SOURCE, TARGET = 20, 15


def built(name: str) -> PreTrainedModel:
    """A tiny model whose relative biases, if it has any, are wide enough to tell distances apart."""
    if name != "bart" and not INTERFACE:
        pytest.skip("this version of transformers computes T5's attention in the module itself")
    model = tiny_encoder_decoder(name, relative_attention_num_buckets=16, relative_attention_max_distance=12)
    draw = torch.Generator().manual_seed(7)
    for weight_name, weight in model.named_parameters():
        if "relative_attention_bias" in weight_name:
            weight.data.copy_(torch.randn(weight.shape, generator=draw))
    return model


def stack_of(model: PreTrainedModel, name: str) -> Any:
    return model.get_encoder() if name == "encoder" else model.get_decoder()


def logits(model: PreTrainedModel, source: Tensor, target: Tensor, **call: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=source, decoder_input_ids=target, use_cache=False, **call).logits


def token_by_token(model: PreTrainedModel, source: Tensor, target: Tensor, **call: Any) -> Tensor:
    past, found = None, []
    with torch.no_grad():
        read = model.get_encoder()(input_ids=source, **call)
        for at in range(target.shape[1]):
            step = {"decoder_input_ids": target[:, at : at + 1], "past_key_values": past}
            out = model(encoder_outputs=read, use_cache=True, **step, **call)
            past = out.past_key_values
            found.append(out.logits)
    return torch.cat(found, dim=1)


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
    with auto_classes():
        others = [from_pretrained(tmp_path), AutoModelForSeq2SeqLM.from_pretrained(tmp_path)]
    for loaded in others:
        assert type(loaded) is type(model)
        assert describe(loaded) == report
        assert_close(logits(loaded.eval(), source, target), whole)
    unpatch_model(model)
    assert torch.equal(logits(model, source, target), stock)
    assert model.config is config
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]
    assert_close(logits(unpatch_model(others[0]), source, target), stock)


@pytest.mark.parametrize("scheme", ["dynamic_ntk", "window", "fox"])
def test_a_cache_with_as_many_layers_as_the_encoder(scheme: str) -> None:
    """``generate`` makes such a cache of a T5."""
    model, source, target = patch_model(built("t5"), scheme), tokens(SOURCE), tokens(TARGET)
    own = DynamicCache(config=model.config)
    assert len(own.layers) > model.config.num_decoder_layers, "control"
    call = {"decoder_input_ids": target, "past_key_values": EncoderDecoderCache(own, DynamicCache())}
    assert_close(model(source, **call).logits.detach(), logits(model, source, target))


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


SCHEMES: dict[str, dict[str, Any]] = {
    "alibi": {},
    "t5": {},
    "none": {},
    "yarn": {"factor": 2},
    "window": {"size": 6},
    "sinusoidal": {},
    "fox": {},
}
OF_DECODERS: dict[str, dict[str, Any]] = {"t5+sinks": {"sinks": 2, "recent": 9}, "rope+self_extend": {"factor": 4}}
PAIRS = [(name, scheme) for name in ("t5", "bart") for scheme in (*SCHEMES, *OF_DECODERS)]
PAIRS += [("umt5", "t5"), ("umt5", "window"), ("umt5", "sinusoidal")]
READ_BY_ROW = ("window", "sinusoidal")  # schemes under which BART reads a table, its own or the scheme's

stacks = pytest.mark.parametrize("stack", STACKS)


@pytest.mark.parametrize("name", [*FAMILIES, "mt5"])
@stacks
def test_the_stacks_own_positions(name: str, stack: str) -> None:
    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    stock = logits(model, source, target)
    patch_model(stack_of(model, stack), "host")
    assert describe(stack_of(model, stack)).proof.verdict == "identity"
    assert_close(logits(model, source, target), stock)
    assert_close(token_by_token(model, source, target), stock)
    unpatch_model(stack_of(model, stack))
    assert torch.equal(logits(model, source, target), stock)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("posenc")]


@pytest.mark.parametrize(("name", "scheme"), PAIRS)
@stacks
def test_every_way_to_read_a_text(name: str, stack: str, scheme: str) -> None:
    """At once, token by token, and with padding on both sides of the source; the other stack stays as it was."""
    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    patched, options = stack_of(model, stack), SCHEMES | OF_DECODERS
    stock = logits(model, source, target)
    if stack == "encoder" and scheme in OF_DECODERS:
        with pytest.raises(SchemeNotDefined, match="needs a decoder"):
            patch_model(patched, scheme, **options[scheme])
        return
    patch_model(patched, scheme, **options[scheme])
    whole = logits(model, source, target)
    assert float((whole - stock).abs().max() / stock.std()) > 1e-2
    assert_close(token_by_token(model, source, target), whole)
    for left in (True, False):
        if left and name == "bart" and (stack == "decoder" or scheme in READ_BY_ROW):
            continue  # the tokens of BART's encoder have other rows of its table after padding, patched or not
        ids, mask = padded(source, left=left)
        assert_close(logits(model, ids, target, attention_mask=mask), whole)
        assert_close(token_by_token(model, ids, target, attention_mask=mask), whole)
    unpatch_model(patched)
    assert torch.equal(logits(model, source, target), stock)


@pytest.mark.parametrize("name", ["t5", "umt5"])
@stacks
def test_a_copied_table_is_the_models_own(name: str, stack: str) -> None:
    """Scheme t5 with T5's buckets and numbers gives T5's logits, padded and token by token; with others it does not."""
    model, source, target = built(name), tokens(SOURCE), tokens(TARGET)
    patched = stack_of(model, stack)
    ids, mask = padded(source, left=True)
    stock, stock_padded = logits(model, source, target), logits(model, ids, target, attention_mask=mask)
    patch_model(patched, "t5", num_buckets=16, max_distance=12, share_layers=name == "t5")
    assert float((logits(model, source, target) - stock).abs().max() / stock.std()) > 1e-2
    for block in patched.block:
        attention = block.layer[0].SelfAttention
        if attention.has_relative_attention_bias:
            attention.scheme.table.weight.data.copy_(attention.relative_attention_bias.weight)
    assert_close(logits(model, source, target), stock)
    assert_close(token_by_token(model, source, target), stock)
    assert_close(logits(model, ids, target, attention_mask=mask), stock_padded)


def test_trained_with_its_own_bias() -> None:
    """Gradients of T5's table under a scheme that keeps it are T5's own; under one that replaces it, there are none."""
    model, source, target = built("t5"), tokens(SOURCE), tokens(TARGET)

    def gradients() -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        model(input_ids=source, decoder_input_ids=target, labels=target).loss.backward()
        return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

    stock = gradients()
    patch_model(model, "host")
    found = gradients()
    assert found.keys() == stock.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, stock[name], rtol=1e-4, atol=1e-6, msg=name)
    unpatch_model(model)
    patch_model(model, "alibi")
    assert {name for name in stock if "relative_attention_bias" in name} == stock.keys() - gradients().keys()
