"""`ForwardCall`: one call of a patched base model, parsed once from the caller's arguments.

Each stage of `hf_posenc.forward.stages` takes a `ForwardCall` and returns the next one. No stage changes the
caller's arguments. At the end, `host_keywords` makes the arguments of the host's own forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.cache.provenance import self_attention_cache
from hf_posenc.cache.validate_cache import check_kind
from hf_posenc.forward.current_forward import ATTENTIONS, FIRST_POSITION_ID, TOKEN_TYPES, USES_LOOKUP, schemes_of_base
from hf_posenc.forward.host_calls import cache_argument, forward_parameters, masks_by_kind, paged_cache, pop_cache
from hf_posenc.forward.positions import KEYWORD, ForwardContext
from hf_posenc.forward.validate_inputs import tokens_of_call
from hf_posenc.schemes.base import Scheme


@dataclass(frozen=True)
class ForwardCall:
    """Arguments of one call of a base model, as the caller passed them or as a stage returned them.

    Attributes:
        base: the patched base model.
        schemes: the different schemes of its layers.
        keywords: the caller's arguments by name, without the KV cache.
        tokens: ids ``[batch, query]`` or embeddings ``[batch, query, width]``.
        mask: the attention mask; the widest one if there is one for each kind of layer.
        masks_by_kind: the mask for each kind of layer, if `generate` or an outer model made them; else None.
        cache: the KV cache; the pair of caches for an encoder-decoder. A paged cache stays among the keywords.
        use_cache: whether to cache the tokens; None if the configuration decides.
        paged: whether the call belongs to continuous batching.
        position_ids: positions of the new tokens, ``[batch or 1, query]``; None if they count on from the cache.
        coordinates: positions on several axes, ``[batch or 1, query, axes]``.
        padding: the 2-D mask as bool, ``[batch, key]``, true at real tokens; None without padding.
        unmasked: whether no mask hides anything.
        numbered_by_caller: whether the caller passed ``position_ids`` of one axis.
        counts_from_zero: whether the caller's positions count from 0, in a model that itself begins at another number.
        texts: number of each token's text, ``[batch or 1, query]``, if masks must separate packed texts; else None.
        text_keys: number of keys in each token's text, ``[batch or 1, query]``, for packed encoder rows; else None.
        moved: positions that the scheme changed, ``[batch or 1, query]``; None if it changed none.
    """

    base: nn.Module
    schemes: list[Scheme]
    keywords: Mapping[str, Any]
    tokens: Tensor
    mask: Any = None
    masks_by_kind: dict[str, Any] | None = None
    cache: Any = None
    use_cache: bool | None = None
    paged: bool = False
    position_ids: Tensor | None = None
    coordinates: Tensor | None = None
    padding: Tensor | None = None
    unmasked: bool = True
    numbered_by_caller: bool = False
    counts_from_zero: bool | Tensor | None = None
    texts: Tensor | None = None
    text_keys: Tensor | None = None
    moved: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of new tokens."""
        return self.tokens.shape[1]

    @property
    def attentions(self) -> list[Any]:
        """The patched attention modules, in the order of the layers."""
        return self.base.__dict__[ATTENTIONS]

    @property
    def causal(self) -> bool:
        """Whether the model is a decoder."""
        return self.attentions[0].is_causal

    @property
    def own_cache(self) -> Any:
        """The KV cache of self-attention."""
        return self_attention_cache(self.cache)

    @property
    def past(self) -> int | Tensor:
        """Number of tokens in the cache; a tensor for a static cache."""
        cache = self.own_cache
        return 0 if cache is None else cache.get_seq_length()

    @property
    def stated_positions(self) -> Tensor | None:
        """Positions of the new tokens by the scheme or else the caller; None if they count on from the cache."""
        return self.position_ids if self.moved is None else self.moved

    @property
    def positions(self) -> Tensor:
        """Positions of the new tokens, ``[batch or 1, query]``; by default they count on from the cache."""
        if self.stated_positions is not None:
            return self.stated_positions
        return torch.arange(self.length, device=self.tokens.device)[None] + self.past


def parse_call(base: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> ForwardCall:
    """Parse the arguments of a base model into a `ForwardCall`.

    Raises:
        InvalidInput: there are no tokens, an id is outside the vocabulary, there are two caches, or the cache is no
            `Cache`.
        TypeError: there are more arguments than the model takes, or an argument is passed twice.
    """
    keywords = named_arguments(base, args, kwargs)
    schemes, cache = schemes_of_base(base), pop_cache(keywords)
    check_kind(cache)
    mask, config = keywords.get("attention_mask"), base.config
    by_kind, mask = masks_by_kind(mask, config)
    ids, flattens = keywords.get("input_ids"), base.__dict__[ATTENTIONS][0].flattens_ids
    tokens = tokens_of_call(base, ids, keywords.get("inputs_embeds"), flattens=flattens)
    if tokens.ndim < getattr(ids, "ndim", 0) and isinstance(mask, Tensor) and mask.ndim == 3:
        mask = mask.flatten(0, 1)  # as `tokens_of_call` flattens the ids
    return ForwardCall(
        base=base,
        schemes=schemes,
        keywords=keywords,
        tokens=tokens,
        mask=mask,
        masks_by_kind=by_kind,
        cache=cache,
        use_cache=keywords.get("use_cache"),
        paged=paged_cache(keywords) is not None,
        position_ids=keywords.get("position_ids"),
    )


def named_arguments(base: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name.

    Raises:
        TypeError: there are more arguments than the model takes, or an argument is passed twice; as Python would raise.
    """
    if not args:
        return dict(kwargs)
    kind, names = type(base).__name__, forward_parameters(type(base))
    if len(args) > len(names):
        raise TypeError(f"{kind}.forward() takes {len(names)} positional arguments but {len(args)} were given")
    positional = dict(zip(names, args, strict=False))
    if twice := sorted(positional.keys() & kwargs.keys()):
        raise TypeError(f"{kind}.forward() got multiple values for argument {twice[0]!r}")
    return {**positional, **kwargs}


def host_keywords(call: ForwardCall, forward: ForwardContext) -> dict[str, Any]:
    """Keyword arguments for the host's own forward.

    They include positions and token types that the model would read from buffers: these end with its position table.
    """
    keywords = {**call.keywords, **cache_argument(type(call.base), call.cache), KEYWORD: forward}
    mask = call.mask if call.masks_by_kind is None else call.masks_by_kind
    for name, value in (("attention_mask", mask), ("position_ids", call.position_ids), ("use_cache", call.use_cache)):
        if value is not keywords.get(name):
            keywords[name] = value
    first, types = call.base.__dict__.get(FIRST_POSITION_ID), keywords.get("token_type_ids")
    if not call.numbered_by_caller and types is not None and types.ndim > 2:  # TAPAS numbers tokens by their types
        keywords.pop("position_ids", None)
    elif first is not None:
        numbers = forward.positions + first
        looked_up = call.base.__dict__.get(USES_LOOKUP)  # these models may need a row for each sequence
        keywords["position_ids"] = numbers.expand(call.tokens.shape[0], -1) if looked_up else numbers
    if types is None and call.base.__dict__.get(TOKEN_TYPES):
        keywords["token_type_ids"] = torch.zeros(call.tokens.shape[:2], dtype=torch.long, device=call.tokens.device)
    return keywords
