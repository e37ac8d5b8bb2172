"""Checks of later changes to a patched model: offloading, dtype casts and edits of its configuration."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from hf_posenc.checks.case import Case
from hf_posenc.checks.forward import config_of, forward, forward_in_chunks, max_deviation, new_cache, random_tokens
from hf_posenc.checks.registry import Measured, located, register_check, worst
from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.patching.patch import patch_model


@register_check("offload", needs_copy=True, slow=True)
def offloaded_equals_resident(case: Case) -> Measured:
    """A model offloaded before or after the patch equals the resident model, in two calls and in cached decoding.

    If it is offloaded first, the scheme's parameters must still be initialised from torch's seed.
    """
    measured = []
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 5, model))
        offloaded = offload(copy.deepcopy(model))
        for call in ("first call", "second call"):
            deviation = max_deviation(forward(offloaded, tokens), forward(model, tokens))
            measured.append(located(deviation, f"patched, then offloaded, {call}"))
        if case.causal and case.continues_texts:
            measured.append(located(max_deviation(decode(offloaded, tokens), decode(model, tokens)), "decoding"))
    with case.unpatched() as model:
        offloaded = offload(copy.deepcopy(model))
        for unpatched in (model, offloaded):
            with fixed_seed(0):
                patch_model(unpatched, case.scheme, **case.options)
        deviation = max_deviation(forward(offloaded, tokens), forward(model, tokens))
        measured.append(located(deviation, "offloaded, then patched"))
    return worst(measured)


def offload(model: nn.Module) -> nn.Module:
    """Offload the model's weights to CPU memory; accelerate then loads them for each call."""
    device = next(model.parameters()).device
    from accelerate import cpu_offload

    return cpu_offload(model, execution_device=device)


def decode(model: nn.Module, tokens: Tensor) -> Tensor:
    """Outputs of a text, with its last three tokens decoded one by one from a KV cache."""
    length = tokens.shape[1]
    sizes = [length - 3, 1, 1, 1]
    return forward_in_chunks(model, tokens, new_cache(DynamicCache, model, length), sizes)


@register_check("dtype_cast", needs_copy=True)
def dtype_round_trip_keeps_tables(case: Case, narrow: torch.dtype = torch.bfloat16) -> Measured:
    """A model cast to ``narrow`` and back is bit-equal to a newly patched model with the rounded weights.

    Angles, slopes and other tables must be computed from Python numbers, not from values that a cast rounds.
    """
    with case.patched() as model:
        tokens, dtype = random_tokens(model, case.clip_length(case.trained_length + 6, model)), model.dtype
        forward(model, tokens)
        forward(model.to(narrow), tokens)
        after = forward(model.to(dtype), tokens)
        rounded_weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with case.unpatched() as model:
        case.apply(model)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(rounded_weights[name])
        value, where = max_deviation(after, forward(model, tokens))
    return value, f"{where}, after a cast to {narrow}"


ENTRIES = (
    "max_position_embeddings", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size",
    "rope_parameters", "is_decoder",
)  # fmt: skip
"""Entries from which positions and the shapes of a scheme are read."""


@register_check("configuration")
def config_edits_have_no_effect(case: Case) -> Measured:
    """Outputs are bit-equal after an edit of any configuration entry about positions, with and without a cache."""
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 6, model))
        continues = case.causal and case.continues_texts
        sizes = [tokens.shape[1] - 2, 1, 1]
        before = forward(model, tokens)
        decoded = forward_in_chunks(model, tokens, DynamicCache(), sizes) if continues else None
        measured = [(0.0, "no entry")]
        for name in ENTRIES:
            with edited_config(config_of(model), name):
                measured.append((max_deviation(forward(model, tokens), before)[0], name))
                if decoded is not None:
                    again = forward_in_chunks(model, tokens, DynamicCache(), sizes)
                    measured.append((max_deviation(again, decoded)[0], f"{name}, with a cache"))
    return worst(measured)


@contextmanager
def edited_config(config: Any, name: str) -> Iterator[None]:
    """Inside the block, change an entry if present: double a number, negate a boolean, replace a RoPE base."""
    name = config.attribute_map.get(name, name)
    entries = vars(config)
    if entries.get(name) is None:
        yield
        return
    before = entries[name]
    if isinstance(before, bool):
        entries[name] = not before
    else:
        entries[name] = 2 * before if isinstance(before, int) else {**before, "rope_theta": 17.0}
    try:
        yield
    finally:
        entries[name] = before
