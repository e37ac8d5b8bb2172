"""KV-cache provenance: record which scheme wrote the keys of a cache, and refuse to continue it under another."""

from __future__ import annotations

import warnings

from torch import nn
from transformers import Cache

from hf_posenc.cache.self_attention import self_attention_cache
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import InvalidInput, UnknownKeys

MARK = "posenc_keys_of"  # of a cache: the scheme entry of the model that fills it
ENTRY = "posenc_entry"  # of a base model: the scheme entry it was patched with, whatever its configuration says since


def mark_cache(base: nn.Module, cache: Cache | None) -> None:
    """Record on a cache which scheme fills it.

    Raises:
        InvalidInput: it holds keys of another scheme, or of this one with other options or another factor.

    Warns:
        UnknownKeys: it holds keys, and no scheme is recorded.
    """
    own = self_attention_cache(cache)
    if own is None or is_traced():
        return
    ours, theirs = vars(base)[ENTRY], getattr(own, MARK, None)
    if theirs == ours:  # first, since the length of a static cache lies on its device
        return
    held = int(own.get_seq_length())
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
