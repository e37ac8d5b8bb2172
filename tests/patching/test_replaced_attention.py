"""Attention that another library puts in place after the patch, as TransformerLens does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import patch_model
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import ForeignPatch


class Bridge(nn.Module):
    """Attention in a wrapper that calls it (``calls``) or computes something else with its projections."""

    def __init__(self, attention: nn.Module, *, calls: bool) -> None:
        super().__init__()
        self.original, self.calls = attention, calls

    def forward(self, hidden_states: Tensor, **call: Any) -> Any:
        original: Any = self.original
        return original(hidden_states, **call) if self.calls else (original.c_proj(hidden_states), None)


def bridged(model: nn.Module, *, calls: tuple[bool, ...]) -> nn.Module:
    for block, own in zip(model.transformer.h, calls, strict=True):  # type: ignore[union-attr, arg-type]
        block.attn = Bridge(block.attn, calls=own)
    return model


def test_a_model_whose_attention_is_replaced_is_refused() -> None:
    model = patch_model(tiny_model("gpt2"), "alibi")
    tokens = random_tokens(model, 20)
    with torch.no_grad():
        expected = model(tokens).logits
    with pytest.raises(ForeignPatch, match="GPT2Model"):
        bridged(model, calls=(False, False))(tokens)
    model.transformer.h[0].attn.calls = True
    model(tokens)  # layers may be skipped
    for block in model.transformer.h:
        block.attn.calls = True  # a wrapper such as FSDP's
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, expected)


def test_cosines_of_a_replaced_rotation_are_not_given() -> None:
    model = patch_model(tiny_model("llama"), "alibi")
    given: list[Any] = []
    model.model.layers[0].register_forward_pre_hook(
        lambda _module, _args, call: given.append(call["position_embeddings"]), with_kwargs=True
    )
    model(random_tokens(model, 20))
    with pytest.raises(ForeignPatch, match="AdaptionPrompt"):
        _cos, _sin = given[0]
