"""The KV cache of self-attention inside an encoder-decoder's pair."""

from __future__ import annotations

from transformers import Cache, EncoderDecoderCache


def self_attention_cache(cache: Cache | None) -> Cache | None:
    """The part of an encoder-decoder cache that belongs to self-attention; other caches as they are."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
