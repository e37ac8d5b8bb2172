"""Forward pre-hook of the base model: check the call, prepare its KV cache, and hand a `ForwardContext` to every layer.

The hook sees what attention modules do not: the caller's 2-D mask, positions with gaps or several axes, and the cache
while it is empty. One idea, read from top to bottom, in more than 200 lines: the stages of `prepare_forward` and the
cache and positions they prepare.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import MaskMismatch, NeedsWholeText
from hf_posenc.patches.attention_masks import (
    check_mask,
    check_rows,
    counted_positions,
    scores_mask,
    spread_rows,
)
from hf_posenc.patches.cache.eviction import (
    ascend,
    check_ascending,
    install_eviction,
    is_fresh,
    keep_padding,
)
from hf_posenc.patches.cache.key_positions import CachedPositions, count_on, reads_keys, record
from hf_posenc.patches.cache.length_rotated import install_length_rotation
from hf_posenc.patches.cache.paged import paged_cache
from hf_posenc.patches.cache.paged_support import check_scheme, mark_pages
from hf_posenc.patches.cache.preallocated import install_preallocation
from hf_posenc.patches.cache.provenance import ENTRY, mark_cache
from hf_posenc.patches.cache.self_attention import self_attention_cache
from hf_posenc.patches.cache.validate_fit import check_fit, check_kind
from hf_posenc.patches.cache.validate_layers import check_layers
from hf_posenc.patches.context_parallel import context_parallel_active, refuse_context_parallel
from hf_posenc.patches.positions import KEYWORD, ForwardContext, in_steps_of_one
from hf_posenc.patches.validate_inputs import check_positions, check_tokens, positions_in_range
from hf_posenc.schemes.base import Scheme, implements

ATTENTIONS = "posenc_attentions"  # of the base model: its patched modules, in the order of the layers
NUMBERED_FROM = "posenc_numbered_from"  # of a base model with a table: the number it gives to its first token itself
TOKEN_TYPES = "posenc_token_types"  # of a base model: whether its token types come from a buffer that ends
_NAMES: dict[type[nn.Module], tuple[str, ...]] = {}


def prepare_forward(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Forward pre-hook of the base model: fill in ``position_ids`` from the mask and pass a `ForwardContext` down.

    Raises:
        InvalidInput: no tokens; ids, positions or mask values that cannot be; a row of padding alone; or a cache that
            does not fit.
        MaskMismatch: a mask has not the shape of the tokens it should mask.
        NeedsWholeText: a text is to be continued whose positions would all change.
    """
    if args:
        names = _parameters(type(module))  # type: ignore[arg-type]  # mypy takes the instances' hash for the class's
        kwargs = dict(zip(names, args, strict=False)) | kwargs
    mask, positions, cache = kwargs.get("attention_mask"), kwargs.get("position_ids"), kwargs.get("past_key_values")
    by_kind = mask if isinstance(mask, dict) else None  # `generate` makes one for each kind of layer
    if by_kind is not None:
        mask = next((one for one in by_kind.values() if one is not None), None)
    flattens = module.__dict__[ATTENTIONS][0].flattens_ids
    tokens = check_tokens(module, kwargs.get("input_ids"), kwargs.get("inputs_embeds"), flattens=flattens)
    if tokens.ndim < getattr(kwargs.get("input_ids"), "ndim", 0) and isinstance(mask, Tensor) and mask.ndim == 3:
        mask = mask.flatten(0, 1)  # as the ids were
    length = tokens.shape[1]
    check_kind(cache)
    check_layers(self_attention_cache(cache), length, schemes_of_base(module), module.__dict__[ATTENTIONS])
    check_positions(positions, tokens)
    first = module.__dict__.get(NUMBERED_FROM)
    if positions is not None and first:
        kwargs["position_ids"] = positions = (positions - first).clamp(min=0)
    if module.__dict__.get(TOKEN_TYPES) and kwargs.get("token_type_ids") is None:
        kwargs["token_type_ids"] = torch.zeros(tokens.shape[:2], dtype=torch.long, device=tokens.device)
    pages = paged_cache(kwargs)
    if pages is None:  # else the mask is transformers' own, over the keys of all requests
        check_mask(mask, tokens, scheme_of_base(module).geometry.heads, self_attention_cache(cache))
    plain = pages is None
    if pages is not None:
        check_continuous_batch(module)
        mark_pages(pages, vars(module)[ENTRY])
    padding = coordinates = None
    if positions is not None and positions.ndim == 3:
        coordinates, positions = positions.movedim(0, -1), None
        kwargs["position_ids"] = None
    elif positions is not None and positions.dtype is not torch.int64:  # narrow ones wrap where they are subtracted
        kwargs["position_ids"] = positions = positions.long()
    if isinstance(mask, Tensor) and mask.ndim == 2:
        kwargs["attention_mask"] = mask = spread_rows(mask, tokens.shape[0])
        padding = mask.bool()
        plain = not is_traced() and bool(padding.all())
        if cache is None and not kwargs.get("use_cache") and not is_traced():  # else text may come in a later chunk
            check_rows(padding)
        if plain:
            padding = None
        elif positions is None:
            kwargs["position_ids"] = counted_positions(padding, length, self_attention_cache(cache))
    elif mask is not None:
        plain = False  # a mask of the caller's own shape: nothing is known of it
        if isinstance(mask, Tensor):
            base: Any = module
            kwargs["attention_mask"] = scores_mask(mask, base.dtype, base.config._attn_implementation)
    if positions is not None:
        kwargs["position_ids"] = positions = positions_in_range(positions, padding)
        plain = plain and in_steps_of_one(positions)
    moved = _moved(module, kwargs, length, tokens)
    own_mask = by_kind is None and isinstance(mask, Tensor) and mask.ndim == 4
    if by_kind is not None:
        kwargs["attention_mask"] = by_kind
    _prepare_cache(module, kwargs, tokens, padding, moved)
    keys = _keys(module, kwargs, tokens, padding, moved)
    contiguous = plain and moved is None
    counted = contiguous and kwargs.get("position_ids") is None and coordinates is None and not is_traced()
    here = _positions(kwargs, tokens) if moved is None else moved
    kwargs[KEYWORD] = ForwardContext(padding, contiguous, coordinates, moved, keys, counted, own_mask, here)
    if first is not None:
        kwargs["position_ids"] = here + first
    return (), kwargs


def check_continuous_batch(base: nn.Module, *, graphs: bool = False) -> None:
    """Refuse the schemes of a patched base model that cannot be computed in continuous batches.

    Args:
        base: with the attention implementation that continuous batching chose.
        graphs: whether batches will be replayed as CUDA graphs.

    Raises:
        BackendCannotCarry: the paged cache has no room for what one caches, or the backend cannot compute it.
        NeedsWholeText: positions depend on the length of the whole text.
    """
    config: Any = base.config
    windowed = getattr(config, "sliding_window", None) is not None or "sliding_attention" in (
        getattr(config, "layer_types", None) or ()
    )
    for scheme in schemes_of_base(base):
        check_scheme(scheme, config._attn_implementation, windowed=windowed, graphs=graphs)


def scheme_of_base(base: nn.Module) -> Scheme:
    """The scheme of a patched base model, of its first layer where layers differ."""
    return base.__dict__[ATTENTIONS][0].scheme


def schemes_of_base(base: nn.Module) -> list[Scheme]:
    """The different schemes of a patched base model's layers: one where they share it."""
    shared = base._modules.get("posenc")
    if shared is not None:
        return [shared]  # type: ignore[list-item]
    return list(dict.fromkeys(attention.scheme for attention in base.__dict__[ATTENTIONS]))


def _positions(kwargs: dict[str, Any], tokens: Tensor) -> Tensor:
    """Positions of the new tokens, ``[batch or 1, query]``: the caller's, or counted on from the cache."""
    given, cache = kwargs.get("position_ids"), self_attention_cache(kwargs.get("past_key_values"))
    if given is not None:
        return given
    return torch.arange(tokens.shape[1], device=tokens.device)[None] + (0 if cache is None else cache.get_seq_length())


def _moved(module: nn.Module, kwargs: dict[str, Any], length: int, tokens: Tensor) -> Tensor | None:
    """Positions as the scheme moves them, also put into the call; None where it leaves them."""
    scheme, cache = scheme_of_base(module), self_attention_cache(kwargs.get("past_key_values"))
    if not implements(scheme, "needs_whole_text") and not implements(scheme, "reposition"):
        return None
    past = 0 if cache is None else cache.get_seq_length()
    positions = kwargs.get("position_ids")
    if positions is None:
        positions = torch.arange(length, device=tokens.device)[None] + past
    moved = scheme.reposition(positions, training=module.training)
    changes = moved is not positions or scheme.needs_whole_text
    if changes and not is_traced() and int(past) > 0:  # a static cache counts in a tensor
        raise NeedsWholeText(
            f"Scheme {scheme.extra_repr()!r} places tokens by the length of their text, and {int(past)} tokens are "
            "cached under another length. Pass use_cache=False, or options that do not depend on the length."
        )
    if moved is positions:
        return None
    if context_parallel_active():
        refuse_context_parallel(scheme)
    if scheme.geometry.table is not None:  # the host reads its table by these
        _put_moved(kwargs, positions, moved, len(tokens))
    return moved


def _keys(
    module: nn.Module, kwargs: dict[str, Any], tokens: Tensor, padding: Tensor | None, moved: Tensor | None
) -> CachedPositions | None:
    """Where all keys of this forward pass stand, recorded in its cache; None without one, or where no layer asks."""
    cache, length = self_attention_cache(kwargs.get("past_key_values")), tokens.shape[1]
    if cache is None or length == 0 or not any(map(reads_keys, schemes_of_base(module))):
        return None
    positions = kwargs.get("position_ids") if moved is None else moved
    own = positions is None
    if positions is None:
        keys = count_on(cache, length)
        if keys is not None:
            return keys
        positions = torch.arange(length, device=tokens.device)[None] + cache.get_seq_length()
    keys = record(cache, positions, padding, own=own)
    if keys.positions is not None:
        check_ascending(cache, keys.positions, length, padding)
    return keys


def _put_moved(kwargs: dict[str, Any], positions: Tensor, moved: Tensor, batch: int) -> None:
    """Moved positions in place of the caller's, with a mask, or transformers takes their gaps for packed texts.

    Raises:
        MaskMismatch: the caller's positions do stand for packed texts.
    """
    if kwargs.get("attention_mask") is None:
        if kwargs.get("position_ids") is not None and not in_steps_of_one(positions):
            raise MaskMismatch(
                "Packed texts are told apart by positions that start again, and this scheme moves positions. "
                "Pass an attention_mask of shape [batch, 1, length, length] beside them."
            )
        kwargs["attention_mask"] = torch.ones(positions.shape, dtype=torch.long, device=positions.device).expand(
            batch, -1
        )
    kwargs["position_ids"] = moved


def _prepare_cache(
    module: nn.Module, kwargs: dict[str, Any], tokens: Tensor, padding: Tensor | None, moved: Tensor | None
) -> None:
    """Where layers need less than a growing cache keeps, or more, or faster, change those of one still empty."""
    attentions, config = module.__dict__[ATTENTIONS], module.config
    if not attentions[0].is_causal:
        return
    cache = kwargs.get("past_key_values")
    wanted = kwargs.get("use_cache") if kwargs.get("use_cache") is not None else getattr(config, "use_cache", False)
    makes = cache is None and wanted and _makes_dynamic_cache(type(module))  # type: ignore[arg-type]  # as of `_parameters`
    if makes and not (module.training and getattr(module, "gradient_checkpointing", False)):
        cache = DynamicCache(config=config)
        if kwargs.get("encoder_hidden_states") is not None:  # as the host itself would
            cache = EncoderDecoderCache(cache, DynamicCache(config=config))
        kwargs["past_key_values"] = cache
    own = self_attention_cache(cache)
    check_fit(own, len(attentions), *tokens.shape[:2])
    mark_cache(module, cache)
    if is_fresh(own):
        install_length_rotation(own, [attention.scheme.row_rotation() is not None for attention in attentions])
        kept = [attention.scheme.kept_keys for attention in attentions]
        if any(kept) and ascend(kwargs.get("position_ids") if moved is None else moved, padding):
            install_eviction(own, kept, padding)
        install_preallocation(own, len(attentions))
    keep_padding(own, padding)


def _makes_dynamic_cache(cls: type[nn.Module]) -> bool:
    """Whether a model without a cache makes itself a growing one; some with other layers have a kind of their own."""
    forward: Any = inspect.unwrap(cls.forward)
    return "DynamicCache" in forward.__code__.co_names


def _parameters(cls: type[nn.Module]) -> tuple[str, ...]:
    """Names of what a forward takes; kept in a dictionary because a compiler warns of a cache around a function."""
    if cls not in _NAMES:
        _NAMES[cls] = tuple(inspect.signature(cls.forward).parameters)[1:]
    return _NAMES[cls]
