"""Tiny encoder–decoders, their stacks, and the ways to read a text with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.t5 import modeling_t5

from .tiny import tiny_encoder_decoder

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
            out = model(
                encoder_outputs=read,
                decoder_input_ids=target[:, at : at + 1],
                past_key_values=past,
                use_cache=True,
                **call,
            )
            past = out.past_key_values
            found.append(out.logits)
    return torch.cat(found, dim=1)


def padded(source: Tensor, *, left: bool) -> tuple[Tensor, Tensor]:
    """Source ids with five of padding on one side, and their mask."""
    padding = torch.zeros(len(source), 5, dtype=torch.long)
    pair = (padding, source) if left else (source, padding)
    mask = (padding, torch.ones_like(source)) if left else (torch.ones_like(source), padding)
    return torch.cat(pair, 1), torch.cat(mask, 1)
