"""What of a model stands against several texts in a row: a KV cache, and layers that no mask reaches."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.cache_utils import Cache

from hf_posenc.errors import MaskMismatch

RECURRENT = ("linear", "conv", "mamba", "hybrid", "recurrent")  # kinds of layers that hand on what they have read


def caches(module: nn.Module, kwargs: dict[str, Any], cache: Cache | None) -> bool | None:
    """Whether a call caches its tokens: as it asks for, or None where only the configuration says so."""
    config: Any = module.config
    asked = kwargs.get("use_cache")
    if cache is not None or asked is not None:
        return cache is not None or bool(asked)
    return None if getattr(config, "use_cache", False) else False


def mixes(module: nn.Module) -> bool:
    """Whether a model has layers that hand on what they have read, whatever a mask says."""
    config: Any = module.config
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    return getattr(module, "_is_stateful", False) if kinds is None else any(k.startswith(RECURRENT) for k in kinds)


def leave_uncached(module: nn.Module, kwargs: dict[str, Any], *, keep: bool = False) -> None:
    """Leave the cache out of a call with several texts, unless asked to ``keep`` it; refuse layers that mix them.

    Raises:
        MaskMismatch: the model has layers that no mask reaches.
    """
    if mixes(module):
        raise MaskMismatch(
            "Several texts are packed into a row, and layers of this model that are no attention hand on what they "
            "have read of one text to the next. Pass one text a row; or, for one text, an attention_mask of ones."
        )
    if not keep and kwargs.get("use_cache") is None and getattr(module.config, "use_cache", False):
        kwargs["use_cache"] = False
