"""Check of the configuration: a patched model computes with what it was built with, whatever becomes of the record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.cache_utils import DynamicCache

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
"""What positions, and the shapes a scheme is built for, are read from. Hosts read the number of layers live."""


@register_check("configuration")
def changed_configuration_changes_nothing(pair: Case) -> Deviation:
    """Logits are bit-equal after any entry that positions are read from was changed, at once and from a cache."""
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(pair.trained + 6, model))
        continues = pair.causal and not pair.needs_whole_text
        sizes = [tokens.shape[1] - 2, 1, 1]
        before = forward(model, tokens)
        decoded = forward_in_chunks(model, tokens, DynamicCache(), sizes) if continues else None
        found = [(0.0, "no entry")]
        for name in ENTRIES:
            with changed(config_of(model), name):
                found.append((max_deviation(forward(model, tokens), before)[0], name))
                if decoded is not None:
                    again = forward_in_chunks(model, tokens, DynamicCache(), sizes)
                    found.append((max_deviation(again, decoded)[0], f"{name}, from a cache"))
    return pair.gap("configuration", *max(found))


@contextmanager
def changed(config: Any, name: str) -> Iterator[None]:
    """Another value of an entry, where a configuration has it: numbers double, truths turn, a rotation gets a base."""
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
