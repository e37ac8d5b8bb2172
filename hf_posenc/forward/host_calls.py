"""How the installed transformers calls a model: the names that differ between its versions, read from its classes.

Up to 5.23 the KV cache is the argument and the result ``past_key_values``; from 5.24 on it is ``cache``, and the old
name is deprecated. Some attention modules call it ``layer_past``. The paged cache of continuous batching is ``cache``
in all versions: up to 5.23 attention functions take it and write to it, from 5.24 on attention modules do.

Whatever a later version renames is changed here, and in no other file.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Mapping, MutableMapping
from dataclasses import fields
from typing import Any

from torch import Tensor
from transformers import Cache, EncoderDecoderCache
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.masking_utils import LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING, create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaAttention

from hf_posenc.core.tested_versions import tested_versions
from hf_posenc.errors import HostChanged, InvalidInput

CACHE_NAMES = ("cache", "past_key_values", "past_key_value", "layer_past")
"""What calls and results of models, and their attention modules, call a KV cache; the newest name first."""

PARTED = (EncoderDecoderCache, PagedAttentionCache)
"""Classes of caches that attention modules do not write to as they are."""

_NAMES: dict[Any, tuple[str, ...]] = {}  # a compiler warns of a cache around a function


def forward_parameters(cls: type[Any]) -> tuple[str, ...]:
    """Names of the parameters of a class's ``forward`` in their order, without ``self``; through decorators."""
    if cls not in _NAMES:
        _NAMES[cls] = tuple(inspect.signature(cls.forward).parameters)[1:]
    return _NAMES[cls]


MODULES_FILL_PAGES = "cache" in forward_parameters(LlamaAttention)
"""Whether attention modules write to the paged cache, and not the attention functions that they call."""

_OF_MASKS = inspect.signature(create_causal_mask).parameters.keys()
_OF_RESULTS = {field.name for field in fields(BaseModelOutputWithPast)}


def cache_name(cls: type[Any]) -> str | None:
    """What the forward of a class calls its KV cache; None where it takes none."""
    names = forward_parameters(cls)
    return next((name for name in CACHE_NAMES if name in names), None)


def cache_argument(cls: type[Any], cache: Any) -> dict[str, Any]:
    """The KV cache as a keyword for the forward of a class; no keyword where there is no cache.

    Raises:
        HostChanged: the class takes no cache under any known name.
    """
    return {} if cache is None else _named(forward_parameters(cls), cache, f"The forward of {cls.__name__}")


def cache_in_result(cache: Cache | None) -> dict[str, Any]:
    """The KV cache as a keyword for the class of a model's result."""
    return _named(_OF_RESULTS, cache, "A model's result")


def cache_of_mask(cache: Cache | None) -> dict[str, Any]:
    """The KV cache as a keyword for transformers' mask functions."""
    return _named(_OF_MASKS, cache, "create_causal_mask of transformers")


def _named(names: Container[str], cache: Any, what: str) -> dict[str, Any]:
    for name in CACHE_NAMES:
        if name in names:
            return {name: cache}
    raise cache_lost(what)


def cache_lost(what: str) -> HostChanged:
    """The error of a model, a result or an attention module that has no KV cache where there is one."""
    return HostChanged(
        f"{what} takes no KV cache under a known name ({', '.join(CACHE_NAMES)}). "
        f"Install transformers{tested_versions('transformers')}, which hf-posenc is tested with."
    )


def take_cache(call: MutableMapping[str, Any]) -> Any:
    """Take the KV cache out of the keywords of a call, whatever its name; None where there is none.

    A paged cache stays where it is.

    Raises:
        InvalidInput: there are two.
    """
    found, known = None, None
    for name in CACHE_NAMES:
        if name not in call or isinstance(call[name], PagedAttentionCache):
            continue
        cache = call.pop(name)
        if cache is not None and found is not None and cache is not found:
            raise InvalidInput(f"The call has two KV caches, {known} and {name}. Pass one of them.")
        if cache is not None:
            found, known = cache, name
    return found


def cache_of_self_attention(cache: Any, call: MutableMapping[str, Any]) -> Cache | None:
    """The part of one of the `PARTED` caches that attention modules write to; a paged cache becomes a keyword again."""
    if isinstance(cache, PagedAttentionCache):
        call["cache"] = cache
        return None
    return cache.self_attention_cache


def paged_cache(call: Mapping[str, Any]) -> PagedAttentionCache | None:
    """The paged cache among the keywords of a call, if it is one of continuous batching."""
    cache = call.get("cache")
    return cache if isinstance(cache, PagedAttentionCache) else None


def cache_of(result: Any) -> Cache | None:
    """The KV cache in a model's result; None where it returns none."""
    return next((result[name] for name in CACHE_NAMES if name in result), None)


def masks_by_kind(mask: Any, config: Any) -> tuple[dict[str, Any] | None, Any]:
    """Masks for each kind of layer, if ``mask`` is a dictionary of those; and the widest of them, else ``mask``."""
    if not isinstance(mask, dict):
        return None, mask
    kinds = set(getattr(config, "layer_types", None) or ())
    if any(kind.startswith("hybrid") for kind in kinds):  # a layer of several mixers, which has a mask for each
        kinds |= set(LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING)
    if not set(mask) <= kinds or not all(one is None or isinstance(one, Tensor) for one in mask.values()):
        return None, mask  # and is refused as it is
    unpadded = any(one is None for one in mask.values())  # else every kind of layer needs a mask
    return mask, None if unpadded else max(mask.values(), key=lambda one: (one.ndim, one.shape[-1]))
