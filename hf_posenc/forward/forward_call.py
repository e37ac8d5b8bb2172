"""`ForwardCall`: one call of a patched base model, parsed once from the caller's arguments.

Each stage of `hf_posenc.forward.forward_hook` takes a `ForwardCall` and returns the next one. No stage writes into the
caller's arguments; `host_keywords` says at the end what the host's own forward is called with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.cache.provenance import self_attention_cache
from hf_posenc.cache.validate_cache import check_kind
from hf_posenc.forward.current_forward import ATTENTIONS, LOOKED_UP, NUMBERED_FROM, TOKEN_TYPES, schemes_of_base
from hf_posenc.forward.host_calls import cache_argument, forward_parameters, masks_by_kind, paged_cache, take_cache
from hf_posenc.forward.positions import KEYWORD, ForwardContext
from hf_posenc.forward.validate_inputs import tokens_of_call
from hf_posenc.schemes.base import Scheme


@dataclass(frozen=True)
class ForwardCall:
    """A call of a base model, as the caller made it or as a stage returned it.

    Attributes:
        base: the patched base model.
        schemes: the different schemes of its layers.
        keywords: what the caller passed, by name, without the KV cache.
        tokens: ids ``[batch, query]`` or embeddings ``[batch, query, width]``.
        mask: the attention mask; the widest of ``masks_by_kind``.
        masks_by_kind: a mask for each kind of layer, made by `generate` or a model around this one; else None.
        cache: the KV cache, of an encoder-decoder the pair; a paged one stays among the keywords.
        use_cache: whether the tokens are to be cached; None where the configuration says so.
        paged: whether the call is one of continuous batching.
        position_ids: of the new tokens, ``[batch or 1, query]``; None where they count on from the cache.
        coordinates: positions on several axes, ``[batch or 1, query, axes]``.
        padding: the 2-D mask as bool, ``[batch, key]``, true at real tokens; None where nothing is padded.
        unmasked: whether no mask hides anything.
        numbered: whether the caller passed ``position_ids`` of one axis.
        from_zero: whether the caller's positions count from 0, in a model that numbers its first token otherwise.
        texts: number of the text of every token, ``[batch or 1, query]``, that masks have to keep apart; else None.
        text_keys: number of keys of each token's text, ``[batch or 1, query]``, in rows of an encoder; else None.
        moved: positions as the scheme changes them, ``[batch or 1, query]``; None where it does not.
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
    numbered: bool = False
    from_zero: bool | Tensor | None = None
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
        """Tokens in the cache; a static cache counts in a tensor."""
        cache = self.own_cache
        return 0 if cache is None else cache.get_seq_length()

    @property
    def new_positions(self) -> Tensor | None:
        """Positions of the new tokens as the scheme changes them; None where they count on from the cache."""
        return self.position_ids if self.moved is None else self.moved

    @property
    def positions(self) -> Tensor:
        """Positions of the new tokens, ``[batch or 1, query]``; by default they count on from the cache."""
        known = self.new_positions
        return torch.arange(self.length, device=self.tokens.device)[None] + self.past if known is None else known


def parsed(base: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> ForwardCall:
    """The call that a base model was called with.

    Raises:
        InvalidInput: there are no tokens, ids that the model does not have, two caches, or a cache of an unknown kind.
        TypeError: more arguments are given than the model takes, or one twice.
    """
    keywords = named_arguments(base, args, kwargs)
    schemes, cache = schemes_of_base(base), take_cache(keywords)
    check_kind(cache)
    mask, config = keywords.get("attention_mask"), base.config
    by_kind, mask = masks_by_kind(mask, config)
    ids, flattens = keywords.get("input_ids"), base.__dict__[ATTENTIONS][0].flattens_ids
    tokens = tokens_of_call(base, ids, keywords.get("inputs_embeds"), flattens=flattens)
    if tokens.ndim < getattr(ids, "ndim", 0) and isinstance(mask, Tensor) and mask.ndim == 3:
        mask = mask.flatten(0, 1)  # as the ids were
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
        TypeError: more are given than the model takes, or one twice, as Python says of a call of the model itself.
    """
    if not args:
        return dict(kwargs)
    kind, names = type(base).__name__, forward_parameters(type(base))
    if len(args) > len(names):
        raise TypeError(f"{kind}.forward() takes {len(names)} positional arguments but {len(args)} were given")
    given = dict(zip(names, args, strict=False))
    if twice := sorted(given.keys() & kwargs.keys()):
        raise TypeError(f"{kind}.forward() got multiple values for argument {twice[0]!r}")
    return {**given, **kwargs}


def host_keywords(call: ForwardCall, forward: ForwardContext) -> dict[str, Any]:
    """What the host's own forward is called with.

    Positions and token types that a model would read from buffers are given to it, as buffers end with its table.
    """
    keywords = {**call.keywords, **cache_argument(type(call.base), call.cache), KEYWORD: forward}
    mask = call.mask if call.masks_by_kind is None else call.masks_by_kind
    for name, value in (("attention_mask", mask), ("position_ids", call.position_ids), ("use_cache", call.use_cache)):
        if value is not keywords.get(name):
            keywords[name] = value
    first, types = call.base.__dict__.get(NUMBERED_FROM), keywords.get("token_type_ids")
    if not call.numbered and types is not None and types.ndim > 2:  # with several types a token, models number by them
        keywords.pop("position_ids", None)
    elif first is not None:
        numbers = forward.positions + first
        looked_up = call.base.__dict__.get(LOOKED_UP)  # models as old as that may ask for a row each
        keywords["position_ids"] = numbers.expand(call.tokens.shape[0], -1) if looked_up else numbers
    if types is None and call.base.__dict__.get(TOKEN_TYPES):
        keywords["token_type_ids"] = torch.zeros(call.tokens.shape[:2], dtype=torch.long, device=call.tokens.device)
    return keywords
