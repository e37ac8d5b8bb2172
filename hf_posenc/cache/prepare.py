"""Prepare the KV cache of a forward pass: make, check and mark it, choose its layers, and record positions in it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from hf_posenc.cache.eviction import (
    EVICTS,
    EvictingLayer,
    ascend,
    check_ascending,
    install_eviction,
    is_fresh,
    keep_padding,
)
from hf_posenc.cache.key_positions import CachedPositions, record
from hf_posenc.cache.length_rotated import install_length_rotation
from hf_posenc.cache.preallocated import PreallocatedLayer, install_preallocation
from hf_posenc.cache.provenance import mark_cache, self_attention_cache
from hf_posenc.cache.validate_cache import check_fit


def prepare_cache(
    module: nn.Module,
    cache: Cache | None,
    attentions: Sequence[Any],
    *,
    use_cache: bool | None,
    encoder: bool,
    tokens: Tensor,
    padding: Tensor | None,
    positions: Tensor | None,
) -> Cache | None:
    """The cache of a call, checked and marked; a new one where a decoder wants one and was given none.

    Where layers need less than a growing cache keeps, or more, or faster, those of one still empty are replaced.

    Args:
        module: the base model.
        cache: as the caller passed it.
        attentions: the patched modules, in the order of the layers.
        use_cache: whether the call wants one; None where the configuration says so.
        encoder: whether the call has the states of an encoder.
        tokens: ``[batch, query, …]``.
        padding: ``[batch, key]``, true at real tokens, if anything is padded.
        positions: of the new tokens; None where they count on from the cache.

    Raises:
        InvalidInput: the cache does not fit the call, or holds keys of another scheme.
    """
    config: Any = module.config
    if not attentions[0].is_causal:
        return cache
    wanted = getattr(config, "use_cache", False) if use_cache is None else use_cache
    made = own_cache_class(type(module)) if cache is None and wanted else None
    if made is not None and not (module.training and getattr(module, "gradient_checkpointing", False)):
        cache = DynamicCache(config=config) if made is DynamicCache else made()
        if encoder:  # as the host itself would
            cache = EncoderDecoderCache(cache, DynamicCache(config=config))
    own = self_attention_cache(cache)
    attentions = _that_run(module, attentions)
    check_fit(own, len(attentions), *tokens.shape[:2])
    mark_cache(module, cache)
    if is_fresh(own):
        _restore_layers(own)
        install_length_rotation(own, [attention.scheme.row_rotation() is not None for attention in attentions])
        kept = [attention.scheme.kept_keys for attention in attentions]
        if any(kept) and ascend(positions, padding):
            install_eviction(own, kept, padding)
        install_preallocation(own, len(attentions))
    keep_padding(own, padding)
    return cache


def _restore_layers(cache: Cache) -> None:
    """Give transformers' own layers back to a cache that was reset: which others it needs depends on the new text."""
    ours = (EvictingLayer, PreallocatedLayer)
    cache.layers = [DynamicLayer() if isinstance(layer, ours) else layer for layer in cache.layers]
    vars(cache).pop(EVICTS, None)


def _that_run(module: nn.Module, attentions: Sequence[Any]) -> Sequence[Any]:
    """Those of the layers that a call runs, fewer than there are while ``assistant_early_exit`` drafts with the first.

    It lowers ``num_hidden_layers`` of the configuration, which caches are made from and most hosts read in their
    loop over layers; the others run all of their layers, which such a cache does not fit. Layers that were taken out of
    the model since it was patched do not run either.
    """
    config: Any = module.config
    run = getattr(config, "num_hidden_layers", len(attentions))
    if run >= len(attentions) or not _counts_layers(type(module)):  # type: ignore[arg-type]  # as in forward_hook
        return attentions
    present = set(module.modules())
    return [one for one in attentions if one in present and (one.layer_idx is None or one.layer_idx < run)]


@lru_cache(maxsize=64)
def _counts_layers(cls: type[Any]) -> bool:
    """Whether the forward pass of a base model asks its configuration how many layers to run."""
    return "num_hidden_layers" in inspect.unwrap(cls.forward).__code__.co_names


def own_cache_class(cls: type[Any]) -> type[DynamicCache] | None:
    """The class of the growing cache that a base model without one makes itself; None where it makes none.

    MiniMax, whose linear layers keep a state, has a class of its own, made without the configuration.
    """
    forward = inspect.unwrap(cls.forward)
    named = [forward.__globals__.get(name) for name in forward.__code__.co_names]
    found = [one for one in named if isinstance(one, type) and issubclass(one, DynamicCache)]
    return found[0] if found else None


def record_positions(cache: Cache, tokens: Tensor, positions: Tensor | None, padding: Tensor | None) -> CachedPositions:
    """Positions of all keys of this forward pass, recorded in its cache.

    Args:
        cache: of self-attention.
        tokens: ``[batch, query, …]``.
        positions: of the new tokens, ``[batch or 1, query]``; None where they count on from the cache.
        padding: ``[batch, key]``, true at real tokens, if anything is padded.
    """
    length, own = tokens.shape[1], positions is None
    if positions is None:
        positions = torch.arange(length, device=tokens.device)[None] + cache.get_seq_length()
    keys = record(cache, positions, padding, own=own)
    if keys.positions is not None:
        check_ascending(cache, keys.positions, length, padding)
    return keys
