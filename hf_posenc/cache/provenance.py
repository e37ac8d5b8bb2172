"""KV-cache provenance: record which scheme wrote the keys of a cache, and refuse to continue it under another.

PEFT's prefix tuning puts trained keys into a cache before anything is computed. They have no position, and nothing says
which keys they are: where keys are rotated again when they are read, such a cache is refused.
"""

from __future__ import annotations

import warnings

from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache

from hf_posenc.cache.key_positions import RECORD
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import InvalidInput, UnknownKeys

MARK = "posenc_keys_of"  # of a cache: the scheme entry of the model that fills it
ENTRY = "posenc_entry"  # of a base model: the scheme entry it was patched with, whatever its configuration says since


def self_attention_cache(cache: Cache | None) -> Cache | None:
    """The part of an encoder-decoder cache that belongs to self-attention; other caches as they are."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def mark_cache(base: nn.Module, cache: Cache | None) -> None:
    """Record on a cache which scheme fills it.

    Raises:
        InvalidInput: it holds keys of another scheme, or of this one with other options or another factor.

    Warns:
        UnknownKeys: it holds keys, and no scheme is recorded.
    """
    own = self_attention_cache(cache)
    ours, theirs = vars(base)[ENTRY], getattr(own, MARK, None)
    if own is None or theirs == ours:  # first, since the length of a static cache lies on its device
        return
    unknown = theirs is None and is_traced()  # else its length is read, where a traced graph ends
    held = 0 if unknown else int(own.get_seq_length())
    if held and theirs is not None:
        raise InvalidInput(
            f"The cache holds {held} tokens that were written under another scheme, or under other options or another "
            "factor of this one. Start with an empty cache."
        )
    if held:
        warnings.warn(
            f"The cache holds {held} tokens of unknown origin: it does not record the scheme that wrote them. If it "
            "was filled before the model was patched, start with an empty cache.",
            UnknownKeys,
            stacklevel=2,
        )
    setattr(own, MARK, ours)


def check_own_keys(cache: Cache | None) -> None:
    """Refuse a cache that holds tokens, and none that this model has recorded. Call it before new ones are recorded.

    Raises:
        InvalidInput: this is one.
    """
    if cache is None or hasattr(cache, RECORD):
        return
    held = cache.get_seq_length()
    if isinstance(held, Tensor) and is_traced():  # a static cache, which nobody fills beforehand
        return
    if int(held) > 0:
        raise InvalidInput(
            f"The cache holds {int(held)} tokens that this model has not put there, such as a trained prefix. With "
            "key_cache='one' their keys would be rotated when they are read. Start with an empty cache, or patch the "
            "model with key_cache='copies'."
        )
