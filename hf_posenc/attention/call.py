"""One attention call of the engine: rotated queries and keys, values, terms and mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import Band
from hf_posenc.core.terms import Bias, BlockBias, KeyBias, Terms

RotateAtRead = Callable[[Tensor, slice], Tensor]


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of one attention call.

    Attributes:
        queries: one tensor per region, ``[batch, heads, query, head_dim]``, already rotated and scaled.
        keys: one per region, ``[batch, kv_heads, key, head_dim]``, as they are cached: read them by `keys_of` where
            ``at_read`` is not empty.
        values: ``[batch, kv_heads, key, value_dim]``.
        terms: positional terms of the scheme.
        ctx: positions of queries and keys.
        mask: None for causal (or full) attention; else bool (true is visible) or float (added),
            ``[batch or 1, 1 or heads, query or 1, key]``.
        scaling: factor of q · k.
        dropout: probability of dropping an attention weight.
        rotated_keys: ``(length, position of the first key, function of columns)`` to all keys, rotated for queries of
            that length, from a cache that stores them; None without such a cache.
        softcap: the model's own bound c of scores: c · tanh(score / c), before anything is added; None for none.
        start: index of the first query among the keys; None where the queries are the last of them.
        at_read: one per region: rotates cached keys ``[batch, kv_heads, columns, head_dim]``, given with their columns,
            to those of the region, or None where they are cached as the region reads them. Empty where all are.
    """

    queries: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    values: Tensor
    terms: Terms
    ctx: PositionContext
    mask: Tensor | None
    scaling: float
    dropout: float = 0.0
    rotated_keys: Callable[[int, Tensor, Callable[[slice], Tensor]], Tensor] | None = None
    start: int | None = None
    softcap: float | None = None
    at_read: tuple[RotateAtRead | None, ...] = ()

    @property
    def scale(self) -> float:
        """Factor of q · k in the logits."""
        return self.scaling * self.terms.logit_scale

    @property
    def query_length(self) -> int:
        """Number of queries of this call."""
        return self.queries[0].shape[2]

    @property
    def key_length(self) -> int:
        """Number of keys, cached ones included."""
        return self.values.shape[2]

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.queries[0].shape[1]

    @property
    def is_unmasked_square(self) -> bool:
        """Whether the call is a full square, causal or not, without mask and dropout."""
        square = self.query_length == self.key_length
        return self.ctx.contiguous and square and self.mask is None and self.dropout == 0.0

    @property
    def is_decode(self) -> bool:
        """Whether the call is a decode query: one new token after all others."""
        return self.ctx.contiguous and self.query_length == 1 and self.mask is None and self.dropout == 0.0

    @property
    def is_unmasked_suffix(self) -> bool:
        """Whether the queries are the last of the keys, without mask and dropout."""
        return self.ctx.contiguous and self.mask is None and self.dropout == 0.0 and self.start is None

    @property
    def first_query(self) -> int:
        """Index of the first query among the keys."""
        return self.key_length - self.query_length if self.start is None else self.start

    def keys_of(self, region: int, columns: slice) -> Tensor:
        """Some of the keys as a region reads them, ``[batch, kv_heads, columns, head_dim]``."""
        keys, rotate = self.keys[region][:, :, columns], self.at_read[region] if self.at_read else None
        return keys if rotate is None else rotate(keys, columns)

    def with_rotated_keys(self) -> AttentionCall:
        """The call with the keys of all regions as they read them; what a static cache has behind them is left."""
        if not self.at_read:
            return self
        seen = self.ctx.key_positions.shape[1]
        keys = [self.keys_of(region, slice(0, seen)) for region in range(len(self.keys))]
        if self.key_length != seen:
            keys = [torch.cat((read, held[:, :, seen:]), dim=2) for read, held in zip(keys, self.keys, strict=True)]
        return replace(self, keys=tuple(keys), at_read=())

    def of_samples(self, samples: slice) -> AttentionCall:
        """The call of some samples of the batch, without `rotated_keys`, which are those of all of them."""

        def pick(x: Tensor) -> Tensor:
            return x[samples] if x.shape[0] > 1 else x

        def picked(bias: Bias) -> Bias:
            if isinstance(bias, KeyBias):
                return replace(bias, values=pick(bias.values))
            if isinstance(bias, BlockBias):  # what it was made of may hold all samples
                return replace(bias, of_block=lambda block: pick(bias.of_block(block)), shifted=None)
            return bias

        terms, ctx, biases = self.terms, self.ctx, map(picked, self.terms.bias)
        scale = None if terms.row_scale is None else pick(terms.row_scale)
        return replace(
            self,
            queries=tuple(map(pick, self.queries)),
            keys=tuple(map(pick, self.keys)),
            values=pick(self.values),
            terms=replace(terms, bias=tuple(biases), row_scale=scale),
            ctx=replace(ctx, query_positions=pick(ctx.query_positions), key_positions=pick(ctx.key_positions)),
            mask=None if self.mask is None else pick(self.mask),
            rotated_keys=None,
        )

    def order(self, rows: slice) -> Tensor:
        """Which keys are not later than each of some queries, bool ``[1, 1, rows, key]``.

        By index, not by position: positions given by the caller may restart.
        """
        indices = torch.arange(self.key_length, device=self.values.device)
        return (indices <= indices[self.first_query :][rows][:, None])[None, None]

    def with_keys(self, stop: int) -> AttentionCall:
        """The call with its first ``stop`` keys alone; for calls without a mask."""
        keys, values = tuple(key[:, :, :stop] for key in self.keys), self.values[:, :, :stop]
        ctx = replace(self.ctx, key_positions=self.ctx.key_positions[:, :stop])
        return replace(self, keys=keys, values=values, ctx=ctx, start=self.first_query)

    def mask_of(self, rows: slice) -> Tensor | None:
        """The mask of some queries; a mask may have one row for all of them."""
        if self.mask is None or self.mask.shape[2] == 1:
            return self.mask
        return self.mask[:, :, rows]


def unseen_ahead(band: Band, causal: bool) -> Band:
    """The band restricted to distances ≥ 0 where attention is causal."""
    return band & Band(0, None) if causal else band
