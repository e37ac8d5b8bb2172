"""Check of the configuration: later edits of ``model.config`` do not change a patched model's outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import DynamicCache

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    config_of,
    forward,
    forward_in_chunks,
    max_deviation,
    random_tokens,
)
from hf_posenc.checks.registry import register_check

ENTRIES = (
    *("max_position_embeddings", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size"),
    *("rope_parameters", "is_decoder"),
)
"""Entries from which positions and the shapes of a scheme are read."""


@register_check("configuration")
def config_edits_have_no_effect(case: Case) -> Deviation:
    """Outputs are bit-equal after an edit of any entry that positions could be read from, with and without a cache."""
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 6, model))
        continues = case.causal and not case.needs_whole_text
        sizes = [tokens.shape[1] - 2, 1, 1]
        before = forward(model, tokens)
        decoded = forward_in_chunks(model, tokens, DynamicCache(), sizes) if continues else None
        found = [(0.0, "no entry")]
        for name in ENTRIES:
            with edited_config(config_of(model), name):
                found.append((max_deviation(forward(model, tokens), before)[0], name))
                if decoded is not None:
                    again = forward_in_chunks(model, tokens, DynamicCache(), sizes)
                    found.append((max_deviation(again, decoded)[0], f"{name}, with a cache"))
    return case.deviation("configuration", *max(found))


@contextmanager
def edited_config(config: Any, name: str) -> Iterator[None]:
    """In the block, change an entry if present: double a number, negate a boolean, replace a RoPE base."""
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
