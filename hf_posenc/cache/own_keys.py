"""Refuse a KV cache with keys that this model has not cached, where keys are rotated again when they are read.

PEFT's prefix tuning puts trained keys into a cache before anything is computed. They have no position, and every region
reads them as they are; which of the cached keys they are, nothing says.
"""

from __future__ import annotations

from torch import Tensor
from transformers import Cache

from hf_posenc.cache.key_positions import RECORD
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import InvalidInput


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
