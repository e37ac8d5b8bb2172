"""Names that differ between versions of transformers, read from the installed classes.

Up to 5.23, ``past_key_values`` is the argument and the result for the KV cache. From 5.24 on, it is ``cache``, and the
old name is deprecated. Some attention modules call it ``layer_past``. The paged cache of continuous batching is
``cache`` in all versions. Up to 5.23 attention functions write to it; from 5.24 on attention modules do.

If a later version renames something, only this file changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Mapping, MutableMapping
from dataclasses import fields
from typing import Any

from torch import Tensor
from transformers import Cache
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.masking_utils import LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING, create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaAttention

from hf_posenc.core.tested_versions import tested_versions
from hf_posenc.errors import HostChanged, InvalidInput

CACHE_NAMES = ("cache", "past_key_values", "past_key_value", "layer_past")
"""Names of the KV cache in calls and results of models and in attention modules, the newest first."""

_NAMES: dict[Any, tuple[str, ...]] = {}  # not `lru_cache`: the compiler warns about it


def forward_parameters(cls: type[Any]) -> tuple[str, ...]:
    """Names of the parameters of a class's ``forward`` in order, without ``self``; decorators are unwrapped."""
    if cls not in _NAMES:
        _NAMES[cls] = tuple(inspect.signature(cls.forward).parameters)[1:]
    return _NAMES[cls]


MODULES_FILL_PAGES = "cache" in forward_parameters(LlamaAttention)
"""Whether attention modules write to the paged cache themselves; else the attention functions they call do."""

_MASK_PARAMETERS = inspect.signature(create_causal_mask).parameters.keys()
_RESULT_FIELDS = {field.name for field in fields(BaseModelOutputWithPast)}


def cache_name(cls: type[Any]) -> str | None:
    """Name of the KV cache in the forward of a class; None if it takes no cache."""
    names = forward_parameters(cls)
    return next((name for name in CACHE_NAMES if name in names), None)


def cache_argument(cls: type[Any], cache: Any) -> dict[str, Any]:
    """The KV cache as a keyword argument for the forward of a class; empty without a cache.

    Raises:
        HostChanged: the class takes no cache under a known name.
    """
    return {} if cache is None else _cache_keyword(forward_parameters(cls), cache, f"The forward of {cls.__name__}")


def cache_in_result(cache: Cache | None) -> dict[str, Any]:
    """The KV cache as a keyword argument for the class of a model's result."""
    return _cache_keyword(_RESULT_FIELDS, cache, "A model's result")


def cache_of_mask(cache: Cache | None) -> dict[str, Any]:
    """The KV cache as a keyword argument for transformers' mask functions."""
    return _cache_keyword(_MASK_PARAMETERS, cache, "create_causal_mask of transformers")


def _cache_keyword(names: Container[str], cache: Any, what: str) -> dict[str, Any]:
    for name in CACHE_NAMES:
        if name in names:
            return {name: cache}
    raise cache_name_error(what)


def cache_name_error(what: str) -> HostChanged:
    """Error for a model, a result or an attention module without a known name for the KV cache."""
    return HostChanged(
        f"{what} takes no KV cache under a known name ({', '.join(CACHE_NAMES)}). "
        f"Install transformers{tested_versions('transformers')}, which hf-posenc is tested with."
    )


def pop_cache(call: MutableMapping[str, Any]) -> Any:
    """Remove the KV cache from the keywords of a call, and return it; None without a cache.

    A paged cache stays among the keywords.

    Raises:
        InvalidInput: there are two different caches.
    """
    first, first_name = None, None
    for name in CACHE_NAMES:
        if name not in call or isinstance(call[name], PagedAttentionCache):
            continue
        cache = call.pop(name)
        if cache is not None and first is not None and cache is not first:
            raise InvalidInput(f"The call has two KV caches, {first_name} and {name}. Pass one of them.")
        if cache is not None:
            first, first_name = cache, name
    return first


def paged_cache(call: Mapping[str, Any]) -> PagedAttentionCache | None:
    """The paged cache of continuous batching among the keywords of a call; else None."""
    cache = call.get("cache")
    return cache if isinstance(cache, PagedAttentionCache) else None


def cache_in_output(result: Any) -> Cache | None:
    """The KV cache in a model's result; None if it has none."""
    return next((result[name] for name in CACHE_NAMES if name in result), None)


def masks_by_kind(mask: Any, config: Any) -> tuple[dict[str, Any] | None, Any]:
    """The masks for each kind of layer and the widest of them; None and ``mask`` if it is no such dictionary."""
    if not isinstance(mask, dict):
        return None, mask
    kinds = set(getattr(config, "layer_types", None) or ())
    if any(kind.startswith("hybrid") for kind in kinds):  # such a layer has several mixers, with a mask for each
        kinds |= set(LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING)
    if not set(mask) <= kinds or not all(one is None or isinstance(one, Tensor) for one in mask.values()):
        return None, mask  # `check_mask` refuses it
    unpadded = any(one is None for one in mask.values())  # with padding, every kind of layer has a mask
    return mask, None if unpadded else max(mask.values(), key=lambda one: (one.ndim, one.shape[-1]))
