"""KV-cache provenance: record which scheme wrote the keys of a cache, and refuse to continue it under another.

PEFT's prefix tuning puts trained keys into an empty cache. They have no position, and nothing marks them. If cached
keys are rotated again when they are read, such a cache is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import Cache, EncoderDecoderCache

from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import InvalidInput, UnknownKeys

WRITTEN_UNDER = "posenc_keys_of"  # attribute of a cache: the scheme entry of the model that fills it
ENTRY = "posenc_entry"  # attribute of a base model: its scheme entry, even if its configuration changes later


def self_attention_cache(cache: Cache | None) -> Cache | None:
    """The self-attention cache of an encoder-decoder cache; other caches are returned unchanged."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def mark_cache(base: nn.Module, cache: Cache | None, attentions: Sequence[Any]) -> None:
    """Record on a cache which scheme fills it.

    Args:
        base: the base model.
        cache: its KV cache, before positions of new tokens are recorded.
        attentions: its patched modules.

    Raises:
        InvalidInput: the cache holds keys of another scheme, or of the same scheme with other options or factor; or
            keys of unknown origin, which a scheme would rotate when they are read.

    Warns:
        UnknownKeys: the cache holds keys, but records no scheme.
    """
    own = self_attention_cache(cache)
    entry, recorded = vars(base)[ENTRY], getattr(own, WRITTEN_UNDER, None)
    if own is None or recorded == entry:  # first, because a static cache counts its tokens on its device
        return
    unknown = recorded is None and is_traced()  # reading the length would end a traced graph
    length = 0 if unknown else int(own.get_seq_length())
    if length and recorded is not None:
        raise InvalidInput(
            f"The cache holds {length} tokens that were written under another scheme, or under other options or "
            "another factor of this one. Start with an empty cache."
        )
    if length and any(attention.scheme.caches_one_key for attention in attentions):
        raise InvalidInput(
            f"The cache holds {length} tokens that this model has not put there, such as a trained prefix. With "
            "key_cache='one' their keys would be rotated when they are read. Start with an empty cache, or patch the "
            "model with key_cache='copies'."
        )
    if length:
        warnings.warn(
            f"The cache holds {length} tokens of unknown origin: it does not record the scheme that wrote them. If it "
            "was filled before the model was patched, start with an empty cache.",
            UnknownKeys,
            stacklevel=2,
        )
    setattr(own, WRITTEN_UNDER, entry)
