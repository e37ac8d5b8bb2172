"""Positions of a call, read off cache and mask. The only file that touches transformers' cache and mask interfaces.

Only query positions ever reach an attention module, and only sometimes. What is missing is worked out here:

* positions count real tokens: the cumulative sum of the 2-D mask where there is one, else the place in the sequence;
* keys of the cache stand where the newest query's offset puts them, so that a caller's own ``position_ids`` shift both.

A pre-hook on the base model (`announce`) carries what the model knows and its attention modules do not, as one keyword.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from hf_posenc.errors import MaskMismatch, NeedsWholeText
from hf_posenc.patches.evicting import layer_of, make_forgetful
from hf_posenc.patches.rereading import make_rereading
from hf_posenc.positions import PositionContext
from hf_posenc.schemes.base import Scheme

KEYWORD = "posenc_forward"
ATTENTIONS = "posenc_attentions"  # of the base model: its patched modules, in the order of the layers


@dataclass(frozen=True)
class Forward:
    """What one forward pass of the base model tells all its attention modules.

    Attributes:
        padding: the caller's 2-D mask as bool, ``[batch, key]``; None where all tokens are real.
        contiguous: positions run in steps of one and nothing is padded.
        coordinates: the caller's 3-D ``position_ids``, as ``[batch, query, axes]``.
        moved: where the scheme has put the tokens, ``[batch or 1, query]``; None where they stand as they come.
        memo: shared by the layers.
    """

    padding: Tensor | None
    contiguous: bool
    coordinates: Tensor | None = None
    moved: Tensor | None = None
    memo: dict[Hashable, object] = field(default_factory=dict)


def announce(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Forward pre-hook of the base model: fill in ``position_ids`` from the mask and pass a `Forward` down.

    Raises:
        MaskMismatch: a 2-D mask is not as wide as the tokens it should mask.
        NeedsWholeText: a text is to be continued whose positions would all change.
    """
    if args:
        names = _parameters(type(module))  # type: ignore[arg-type]  # mypy takes the instances' hash for the class's
        kwargs = dict(zip(names, args, strict=False)) | kwargs
    mask, positions, cache = (kwargs.get(k) for k in ("attention_mask", "position_ids", "past_key_values"))
    tokens = kwargs.get("input_ids") if kwargs.get("input_ids") is not None else kwargs.get("inputs_embeds")
    length = 0 if tokens is None else tokens.shape[1]
    plain = True
    padding = coordinates = None
    if positions is not None and positions.ndim == 3:
        coordinates, positions = positions.movedim(0, -1), None
        kwargs["position_ids"] = None
    if isinstance(mask, Tensor) and mask.ndim == 2:
        _check_width(mask, length, cache)
        padding = mask.bool()
        plain = not torch.compiler.is_compiling() and bool(padding.all())
        if plain:
            padding = None
        elif positions is None:
            kwargs["position_ids"] = (padding.cumsum(-1) - 1).clamp(min=0)[:, -length:]
    elif mask is not None:
        plain = False  # a mask of the caller's own shape: nothing is known of it
    if positions is not None and plain:
        plain = _in_steps_of_one(positions)
    moved = _moved(module, kwargs, length, tokens)
    _prepare_cache(module, kwargs, padding)
    kwargs[KEYWORD] = Forward(padding, plain and moved is None, coordinates, moved)
    return (), kwargs


def scheme_of_base(base: nn.Module) -> Scheme:
    """The scheme of a patched base model, of its first layer where layers differ."""
    return base.__dict__[ATTENTIONS][0].scheme


def _moved(module: nn.Module, kwargs: dict[str, Any], length: int, tokens: Tensor | None) -> Tensor | None:
    """Positions as the scheme moves them, also put into the call; None where it leaves them."""
    scheme, cache = scheme_of_base(module), self_attention_cache(kwargs.get("past_key_values"))
    if tokens is None:
        return None
    past = 0 if cache is None else cache.get_seq_length()
    positions = kwargs.get("position_ids")
    if positions is None:
        positions = torch.arange(length, device=tokens.device)[None] + past
    moved = scheme.reposition(positions, training=module.training)
    changes = moved is not positions or scheme.needs_whole_text
    if changes and not torch.compiler.is_compiling() and int(past) > 0:  # a static cache counts in a tensor
        raise NeedsWholeText(
            f"Scheme {scheme.extra_repr()!r} places tokens by the length of their text, and {int(past)} tokens are "
            "cached under another length. Pass use_cache=False, or options that do not depend on the length."
        )
    if moved is positions:
        return None
    if scheme.geometry.table is not None:  # the host reads its table by these
        _put_moved(kwargs, positions, moved)
    return moved


def _put_moved(kwargs: dict[str, Any], positions: Tensor, moved: Tensor) -> None:
    """Moved positions in place of the caller's, with a mask, or transformers takes their gaps for packed texts.

    Raises:
        MaskMismatch: the caller's positions do stand for packed texts.
    """
    if kwargs.get("attention_mask") is None:
        if kwargs.get("position_ids") is not None and not _in_steps_of_one(positions):
            raise MaskMismatch(
                "Packed texts are told apart by positions that start again, and this scheme moves positions. "
                "Pass an attention_mask of shape [batch, 1, length, length] beside them."
            )
        kwargs["attention_mask"] = torch.ones(positions.shape, dtype=torch.long, device=positions.device).expand(
            len(_tokens(kwargs)), -1
        )
    kwargs["position_ids"] = moved


def _tokens(kwargs: dict[str, Any]) -> Tensor:
    """Ids or embeddings of a call, whichever it has."""
    return kwargs["inputs_embeds"] if kwargs.get("input_ids") is None else kwargs["input_ids"]


def _prepare_cache(module: nn.Module, kwargs: dict[str, Any], padding: Tensor | None) -> None:
    """Where layers need less than a growing cache keeps, or more, change the layers of one that is still empty."""
    attentions, config = module.__dict__[ATTENTIONS], module.config
    if not attentions[0].is_causal:
        return
    kept = [attention.scheme.kept_keys for attention in attentions]
    by_row = [attention.scheme.row_rotation() is not None for attention in attentions]
    if not any(kept) and not any(by_row):
        return
    cache = kwargs.get("past_key_values")
    wanted = kwargs.get("use_cache") if kwargs.get("use_cache") is not None else getattr(config, "use_cache", False)
    if cache is None and wanted and not (module.training and getattr(module, "gradient_checkpointing", False)):
        cache = kwargs["past_key_values"] = DynamicCache(config=config)
    own = self_attention_cache(cache)
    make_rereading(own, by_row)
    make_forgetful(own, kept, padding)


def context_of(
    query: Tensor,
    cache: Cache | None,
    layer: int | None,
    position_ids: Tensor | None,
    told: Forward | None,
    *,
    causal: bool,
) -> PositionContext:
    """Positions of one attention call. Call it before the cache takes the new keys: a static cache counts in place.

    Args:
        query: ``[batch, heads, query, head_dim]``.
        cache: the layer's cache, if any.
        layer: index of the layer in the cache.
        position_ids: ``[batch or 1, query]`` if the model passed them.
        told: what `announce` passed down; None when the attention module is called on its own.
        causal: whether the module is a decoder's.
    """
    length, device = query.shape[2], query.device
    past, keys = past_and_keys(cache, layer, length)
    index = torch.arange(length, device=device) + past
    if told is not None and told.moved is not None:
        positions = told.moved.to(device)
    elif position_ids is not None:
        positions = position_ids.to(device).long()
    elif told is not None and told.padding is not None:
        positions = (told.padding.cumsum(-1) - 1).clamp(min=0)[:, -length:]
    else:
        positions = index[None]
    if told is None:
        told = Forward(None, position_ids is None or _in_steps_of_one(position_ids))
    real, forgetting = told.padding, layer_of(cache, layer)
    whole = forgetting is None or not forgetting.gaps
    if cache is None or told.moved is not None:
        key_positions = positions
    else:
        numbered = _numbered_keys(told.padding, forgetting.total + length if forgetting else keys, device)
        newest = numbered[:, index[-1:]] if isinstance(past, Tensor) else numbered[:, past + length - 1, None]
        if forgetting is not None and not whole:
            columns = forgetting.columns(length, device)
            numbered, real = numbered[:, columns], None if real is None else real[:, columns]
        key_positions = numbered + (positions[:, -1:] - newest)
        if not told.contiguous:  # what is new stands where the caller says; only of older keys it has to be inferred
            key_positions = _with_own(key_positions, positions, past if whole else key_positions.shape[1] - length)
    return PositionContext(
        positions, key_positions, causal, told.contiguous and whole, real, told.memo, coordinates=told.coordinates
    )


def past_and_keys(cache: Cache | None, layer: int | None, length: int) -> tuple[int | Tensor, int]:
    """Tokens the cache holds before this call, and keys it will return after it."""
    if cache is None:
        return 0, length
    keys, _ = cache.get_mask_sizes(length, layer)
    past = cache.get_seq_length(layer)
    # A static cache counts in a tensor that its update changes in place: take the value as it is now.
    return (past.clone() if isinstance(past, Tensor) else past), keys


def self_attention_cache(cache: Cache | None) -> Cache | None:
    """The part of an encoder-decoder cache that belongs to self-attention; other caches as they are."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def _numbered_keys(padding: Tensor | None, keys: int, device: torch.device) -> Tensor:
    if padding is None:
        return torch.arange(keys, device=device)[None]
    numbered = padding.long().cumsum(-1) - 1
    missing = keys - numbered.shape[1]  # a static cache is longer than what is written in it
    if missing > 0:
        ahead = torch.arange(1, missing + 1, device=device)
        numbered = torch.cat((numbered, numbered[:, -1:] + ahead), dim=1)
    return numbered[:, :keys]


def _with_own(key_positions: Tensor, positions: Tensor, start: int | Tensor) -> Tensor:
    """Positions of the new keys, from column ``start`` on, as their queries have them."""
    rows, length = max(len(key_positions), len(positions)), positions.shape[1]
    columns = torch.arange(length, device=positions.device) + start
    everyone = key_positions.expand(rows, -1).clone()
    return everyone.index_copy(1, columns, positions.expand(rows, -1).to(everyone.dtype))


def _check_width(mask: Tensor, length: int, cache: Cache | None) -> None:
    past = 0 if cache is None else cache.get_seq_length()
    if isinstance(past, Tensor) or mask.shape[1] == past + length:  # a static cache may be masked in its full width
        return
    raise MaskMismatch(
        f"The attention mask is {mask.shape[1]} wide for {length} tokens after {past} cached ones. "
        f"Pass a mask of width {past + length}."
    )


def _in_steps_of_one(positions: Tensor) -> bool:
    if torch.compiler.is_compiling():
        return False  # a value cannot be looked at while tracing
    if positions.shape[-1] == 1:
        return True
    return bool((positions[..., 1:] - positions[..., :-1] == 1).all())


@lru_cache(maxsize=32)
def _parameters(cls: type[nn.Module]) -> tuple[str, ...]:
    return tuple(inspect.signature(cls.forward).parameters)[1:]
