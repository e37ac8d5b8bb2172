"""Forward pre-hook of the base model: check the call, prepare its KV cache, and hand a `ForwardContext` to every layer.

The hook sees what attention modules do not: the caller's 2-D mask, positions with gaps or several axes, and the cache
while it is empty.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.masking_utils import LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING

from hf_posenc.cache.key_positions import reads_keys
from hf_posenc.cache.own_keys import check_own_keys
from hf_posenc.cache.prepare import prepare_cache, record_positions
from hf_posenc.cache.provenance import ENTRY
from hf_posenc.cache.self_attention import self_attention_cache
from hf_posenc.cache.validate_fit import check_kind
from hf_posenc.cache.validate_layers import check_layers
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import BackendCannotCarry, NeedsWholeText
from hf_posenc.forward.attention_masks import (
    check_held_keys,
    check_mask,
    check_rows,
    counted_positions,
    scores_mask,
    spread_rows,
)
from hf_posenc.forward.context_parallel import context_parallel_active, refuse_context_parallel
from hf_posenc.forward.coordinates import take_coordinates
from hf_posenc.forward.current_forward import LOOKED_UP, NUMBERED_FROM, announce, counts_columns
from hf_posenc.forward.forward_parameters import forward_parameters
from hf_posenc.forward.host_calls import cache_argument, paged_cache, take_cache
from hf_posenc.forward.paged_support import check_scheme, mark_pages
from hf_posenc.forward.position_numbers import FROM_ZERO, counts_from_zero, from_zero
from hf_posenc.forward.positions import KEYWORD, ForwardContext, in_steps_of_one
from hf_posenc.forward.texts_in_rows import RowTexts, find_texts
from hf_posenc.forward.validate_inputs import check_position_ids, check_tokens, positions_in_range
from hf_posenc.forward.validate_keywords import check_call
from hf_posenc.schemes.base import Scheme, implements

ATTENTIONS = "posenc_attentions"  # of the base model: its patched modules, in the order of the layers
TOKEN_TYPES = "posenc_token_types"  # of a base model: whether its token types come from a buffer that ends
MOVE = ("needs_whole_text", "reposition")  # hooks of schemes that change positions


def prepare_forward(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Forward pre-hook of the base model, in stages: validate, mask, positions, cache, `ForwardContext`.

    Raises:
        InvalidInput: no tokens; ids, positions or mask values that cannot be; a row of padding alone; or a cache that
            does not fit.
        MaskMismatch: a mask has not the shape of the tokens it should mask.
        NeedsWholeText: a text is to be continued whose positions would all change.
    """
    if args:
        names = forward_parameters(type(module))
        kwargs = named_arguments(type(module).__name__, names, args, kwargs)
    schemes, given = schemes_of_base(module), take_cache(kwargs)
    attentions = module.__dict__[ATTENTIONS]
    check_kind(given)
    cache, by_kind = self_attention_cache(given), _take_masks_by_kind(module, kwargs)
    tokens = _validate(module, kwargs, cache, schemes, by_kind=by_kind is not None)
    in_pages = _mark_pages(module, kwargs)
    coordinates = take_coordinates(kwargs, schemes)
    padding, unmasked = _read_mask(module, kwargs, tokens, given)
    counted_so = _number_from_zero(module, kwargs, padding, cache)
    positions = _read_positions(kwargs, padding, tokens.shape[1], cache)
    texts = RowTexts() if in_pages else find_texts(
        module, kwargs, tokens, cache, coordinates, causal=attentions[0].is_causal, own_mask=by_kind is None
    )  # fmt: skip
    moved = _move_positions(schemes[0], kwargs, tokens, cache, training=module.training)
    given = prepare_cache(module, kwargs, given, tokens, padding, moved, attentions)
    kwargs |= cache_argument(type(module), given)
    cache = self_attention_cache(given)
    if cache is not None and isinstance(counted_so, bool):
        setattr(cache, FROM_ZERO, counted_so)
    if any(scheme.caches_one_key for scheme in schemes):
        check_own_keys(cache)
    keys = record_positions(kwargs, cache, tokens, padding, moved) if any(map(reads_keys, schemes)) else None
    contiguous = unmasked and not in_pages and moved is None and (positions is None or in_steps_of_one(positions))
    counted = contiguous and kwargs.get("position_ids") is None and coordinates is None and not is_traced()
    mask = kwargs.get("attention_mask")
    own_mask = by_kind is None and isinstance(mask, Tensor) and mask.ndim == 4
    here = _positions_now(kwargs, tokens, cache) if moved is None else moved
    weights = kwargs.get("output_attentions", getattr(module.config, "output_attentions", False))
    kwargs[KEYWORD] = ForwardContext(
        padding, contiguous, coordinates, moved, keys, counted, own_mask, here, bool(weights), *texts
    )
    if module.__dict__.get(LOOKED_UP) or (counts_columns(module) and not is_traced()):
        announce(module, kwargs[KEYWORD])
    if by_kind is not None:
        kwargs["attention_mask"] = by_kind
    _fill_in(module, kwargs, tokens, here, given=positions is not None)
    return (), kwargs


def named_arguments(kind: str, names: tuple[str, ...], args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name.

    Raises:
        TypeError: more are given than the model takes, or one twice, as Python says of a call of the model itself.
    """
    if len(args) > len(names):
        raise TypeError(f"{kind}.forward() takes {len(names)} positional arguments but {len(args)} were given")
    given = dict(zip(names, args, strict=False))
    if twice := sorted(given.keys() & kwargs.keys()):
        raise TypeError(f"{kind}.forward() got multiple values for argument {twice[0]!r}")
    return given | kwargs


def _validate(
    module: nn.Module, kwargs: dict[str, Any], cache: Cache | None, schemes: list[Scheme], *, by_kind: bool
) -> Tensor:
    """Check what the caller passed; token ids ``[batch, query]`` or embeddings ``[batch, query, width]``."""
    ids, mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
    flattens = module.__dict__[ATTENTIONS][0].flattens_ids
    tokens = check_tokens(module, ids, kwargs.get("inputs_embeds"), flattens=flattens)
    if tokens.ndim < getattr(ids, "ndim", 0) and isinstance(mask, Tensor) and mask.ndim == 3:
        kwargs["attention_mask"] = mask = mask.flatten(0, 1)  # as the ids were
    if paged_cache(kwargs) is None:
        check_call(module, kwargs, schemes[0], causal=module.__dict__[ATTENTIONS][0].is_causal)
    check_layers(cache, tokens.shape[1], schemes, module.__dict__[ATTENTIONS])
    check_position_ids(kwargs.get("position_ids"), tokens)
    if mask is not None and paged_cache(kwargs) is None:  # else it is transformers' own, over the keys of all requests
        check_mask(mask, tokens, schemes[0].geometry.heads, cache)
        if not by_kind:
            check_held_keys(mask, tokens.shape[1], cache)
    return tokens


def _mark_pages(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    """Whether the call is one of continuous batching; its cache is then marked, and the schemes are checked."""
    pages = paged_cache(kwargs)
    if pages is None:
        return False
    check_continuous_batch(module)
    mark_pages(pages, vars(module)[ENTRY])
    return True


def _read_mask(
    module: nn.Module, kwargs: dict[str, Any], tokens: Tensor, cache: Cache | None
) -> tuple[Tensor | None, bool]:
    """Padding ``[batch, key]``, true at real tokens, None where nothing is padded; and whether nothing is masked."""
    mask = kwargs.get("attention_mask")
    if mask is None:
        return None, True
    if not isinstance(mask, Tensor):
        return None, False
    if mask.ndim != 2:  # a mask of the caller's own shape: nothing is known of it
        base: Any = module
        kwargs["attention_mask"] = scores_mask(mask, base.dtype, base.config._attn_implementation)
        return None, False
    kwargs["attention_mask"] = mask = spread_rows(mask, tokens.shape[0])
    padding = mask.bool()
    if is_traced():
        return padding, False
    if cache is None and not kwargs.get("use_cache"):  # else text may come in a later chunk
        check_rows(padding)
    return (None, True) if bool(padding.all()) else (padding, False)


def _read_positions(kwargs: dict[str, Any], padding: Tensor | None, length: int, cache: Cache | None) -> Tensor | None:
    """The caller's positions, checked, in int64; without them, those of real tokens are put into a padded call."""
    positions = kwargs.get("position_ids")
    if positions is not None:  # narrow integers wrap where they are subtracted
        kwargs["position_ids"] = positions = positions_in_range(positions.long(), padding)
    elif padding is not None:
        kwargs["position_ids"] = counted_positions(padding, length, cache)
    return positions


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
    if not base.__dict__[ATTENTIONS][0].batches_continuously:
        raise BackendCannotCarry(
            f"This {type(base).__name__} does not hand on to its layers what continuous batching passes to it, in this "
            "version of transformers. Use model.generate."
        )
    windowed = getattr(config, "sliding_window", None) is not None or "sliding_attention" in (
        getattr(config, "layer_types", None) or ()
    )
    for scheme in schemes_of_base(base):
        check_scheme(scheme, config._attn_implementation, windowed=windowed, graphs=graphs)


def schemes_of_base(base: nn.Module) -> list[Scheme]:
    """The different schemes of a patched base model's layers: one where they share it."""
    shared = base._modules.get("posenc")
    if shared is not None:
        return [shared]  # type: ignore[list-item]
    return list(dict.fromkeys(attention.scheme for attention in base.__dict__[ATTENTIONS]))


def _take_masks_by_kind(module: nn.Module, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Masks for each kind of layer, made by `generate` or a model around this one; the widest is left in the call."""
    mask, config = kwargs.get("attention_mask"), module.config
    if not isinstance(mask, dict):
        return None
    kinds = set(getattr(config, "layer_types", None) or ())
    if any(kind.startswith("hybrid") for kind in kinds):  # a layer of several mixers, which has a mask for each
        kinds |= set(LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING)
    if not set(mask) <= kinds or not all(one is None or isinstance(one, Tensor) for one in mask.values()):
        return None  # and is refused as it is
    unpadded = any(one is None for one in mask.values())  # else every kind of layer needs a mask
    kwargs["attention_mask"] = None if unpadded else max(mask.values(), key=lambda one: (one.ndim, one.shape[-1]))
    return mask


def _number_from_zero(
    module: nn.Module, kwargs: dict[str, Any], padding: Tensor | None, cache: Cache | None
) -> bool | Tensor | None:
    """Number the caller's positions from 0, where the model's own numbers begin elsewhere; whether they did so."""
    first, numbers = module.__dict__.get(NUMBERED_FROM), kwargs.get("position_ids")
    if not first or numbers is None:
        return None
    ids, pad = kwargs.get("input_ids"), getattr(module.config, "pad_token_id", None)
    pads = ids == pad if ids is not None and pad is not None and kwargs.get("attention_mask") is None else None
    numbers = numbers.long()
    counted = counts_from_zero(numbers, first, padding, pads, cache)
    kwargs["position_ids"] = from_zero(numbers, first, counted, padding, cache)
    return counted


def _fill_in(module: nn.Module, kwargs: dict[str, Any], tokens: Tensor, positions: Tensor, *, given: bool) -> None:
    """Give a model what it would read from buffers that end where its table does: positions and token types."""
    first, types = module.__dict__.get(NUMBERED_FROM), kwargs.get("token_type_ids")
    if not given and types is not None and types.ndim > 2:  # with several types a token, models number by them
        kwargs.pop("position_ids", None)
    elif first is not None:
        numbers = positions + first
        looked_up = module.__dict__.get(LOOKED_UP)  # models as old as that may ask for a row each
        kwargs["position_ids"] = numbers.expand(len(tokens), -1) if looked_up else numbers
    if module.__dict__.get(TOKEN_TYPES) and kwargs.get("token_type_ids") is None:
        kwargs["token_type_ids"] = torch.zeros(tokens.shape[:2], dtype=torch.long, device=tokens.device)


def _positions_now(kwargs: dict[str, Any], tokens: Tensor, cache: Cache | None) -> Tensor:
    """Positions of the new tokens, ``[batch or 1, query]``: the caller's, or counted on from the cache."""
    given = kwargs.get("position_ids")
    if given is not None:
        return given
    past = 0 if cache is None else cache.get_seq_length()
    return torch.arange(tokens.shape[1], device=tokens.device)[None] + past


def _move_positions(
    scheme: Scheme, kwargs: dict[str, Any], tokens: Tensor, cache: Cache | None, *, training: bool
) -> Tensor | None:
    """Positions as the scheme moves them, also put into the call; None where it leaves them."""
    if not scheme.keep("moves positions", lambda: any(implements(scheme, hook) for hook in MOVE)):
        return None
    past, length = 0 if cache is None else cache.get_seq_length(), tokens.shape[1]
    positions = kwargs.get("position_ids")
    if positions is None:
        positions = torch.arange(length, device=tokens.device)[None] + past
    moved = scheme.reposition(positions, training=training)
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


def _put_moved(kwargs: dict[str, Any], positions: Tensor, moved: Tensor, batch: int) -> None:
    """Moved positions in place of the caller's, with a mask, or transformers takes their gaps for packed texts."""
    if kwargs.get("attention_mask") is None:
        kwargs["attention_mask"] = torch.ones(positions.shape, dtype=torch.long, device=positions.device).expand(
            batch, -1
        )
    kwargs["position_ids"] = moved
