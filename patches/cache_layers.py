"""Refuse a KV cache whose layers cannot hold what attention needs, before anything is computed.

Llama, GPT-2 and BERT attend to every key. transformers has cache layers for other models, too: some drop the keys that
left a sliding window, some hold a recurrent state and no keys.
"""

from __future__ import annotations

from transformers.cache_utils import Cache, CacheLayerMixin

from hf_posenc.errors import InvalidInput

FRESH = "Pass DynamicCache(), or none."


def check_layers(cache: Cache | None, length: int) -> None:
    """Refuse a cache of which a layer holds no keys, or has dropped some.

    Args:
        cache: of self-attention.
        length: number of new tokens.

    Raises:
        InvalidInput: a layer is of that kind.
    """
    for number, layer in enumerate(() if cache is None else cache.layers):
        if not isinstance(layer, CacheLayerMixin):
            raise InvalidInput(f"Layer {number} of the cache is a {type(layer).__name__}, which holds no keys. {FRESH}")
        if layer.is_sliding and layer.get_mask_sizes(length)[1] > 0:
            raise InvalidInput(
                f"Layer {number} of the cache is a {type(layer).__name__} that has dropped keys, and the attention of "
                f"this model has no sliding window. {FRESH}"
            )
