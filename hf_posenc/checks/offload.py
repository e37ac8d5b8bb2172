"""Check of offloading: where accelerate keeps the weights between calls must not show in what a model reads."""

from __future__ import annotations

import copy
from importlib import import_module

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    forward,
    forward_in_chunks,
    max_deviation,
    new_cache,
    random_tokens,
)
from hf_posenc.checks.registry import register_check
from hf_posenc.patching.patch import patch_model


@register_check("offload", copies=True, costly=True, needs="accelerate")
def offloaded_equals_whole(pair: Case) -> Deviation:
    """A model offloaded after or before it is patched reads as the whole one, twice, and from a cache where it has one.

    Before the patch the scheme's parameters are drawn from one seed, and have to have their values all the same.
    """
    found = []
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(pair.trained + 5, model))
        offloaded = offload(copy.deepcopy(model))
        for time in ("once", "twice"):
            found.append(
                (*max_deviation(forward(offloaded, tokens), forward(model, tokens)), f"patched, then offloaded, {time}")
            )
        if pair.causal and not pair.needs_whole_text:
            found.append((*max_deviation(decoded(offloaded, tokens), decoded(model, tokens)), "decoding"))
    with pair.host() as model:
        offloaded = offload(copy.deepcopy(model))
        for one in (model, offloaded):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                patch_model(one, pair.scheme, **pair.options)
        found.append((*max_deviation(forward(offloaded, tokens), forward(model, tokens)), "offloaded, then patched"))
    value, where, when = max(found)
    return pair.gap("offload", value, f"{where}, {when}")


def offload(model: nn.Module) -> nn.Module:
    """The model with its weights in memory of the CPU, to be brought to where they are now when they are used."""
    device = next(model.parameters()).device
    return import_module("accelerate").cpu_offload(model, execution_device=device)


def decoded(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits of a text whose last tokens come one by one."""
    length = tokens.shape[1]
    sizes = [length - 3, 1, 1, 1]
    return forward_in_chunks(model, tokens, new_cache(DynamicCache, model, length), sizes)
