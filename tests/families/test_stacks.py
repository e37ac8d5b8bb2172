"""One stack of an encoder–decoder: patched, it works inside its model, and the other stack and cross-attention stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import describe, patch_model, unpatch_model
from hf_posenc.errors import SchemeNotDefined

from .encoder_decoders import FAMILIES, SOURCE, STACKS, TARGET, built, logits, padded, stack_of, token_by_token
from .test_families import assert_close
from .tiny import tokens

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
