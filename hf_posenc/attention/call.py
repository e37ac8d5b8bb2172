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
        keys: one tensor per region, ``[batch, kv_heads, key, head_dim]``, as cached. Read them with `keys_of` unless
            ``at_read`` is empty.
        values: ``[batch, kv_heads, key, value_dim]``.
        terms: positional terms of the scheme.
        ctx: positions of queries and keys.
        mask: None for causal (or full) attention; else bool (true is visible) or float (added),
            ``[batch or 1, 1 or heads, query or 1, key]``.
        scaling: factor of q · k.
        dropout: probability of dropping an attention weight.
        rotated_keys: function of a cache that stores rotated keys; None without such a cache. From the length, the
            position of the first key and a function that rotates columns, it returns all keys rotated for that length.
        softcap: bound c of the model's own score cap, c · tanh(score / c), applied before any bias; None for no cap.
        start: index of the first query among the keys; None if the queries are the last positions.
        at_read: one function per region that rotates cached keys ``[batch, kv_heads, columns, head_dim]`` at the given
            columns. None for a region that reads keys as cached; empty if all regions do.
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
    def is_unmasked_suffix(self) -> bool:
        """Whether the queries are the last positions, without mask and dropout."""
        return self.ctx.contiguous and self.mask is None and self.dropout == 0.0 and self.start is None

    @property
    def is_unmasked_square(self) -> bool:
        """Whether the call is a full square, causal or not, without mask and dropout."""
        return self.is_unmasked_suffix and self.query_length == self.key_length

    @property
    def is_decode(self) -> bool:
        """Whether the call is one new token after all others, without mask and dropout."""
        return self.is_unmasked_suffix and self.query_length == 1

    @property
    def first_query(self) -> int:
        """Index of the first query among the keys."""
        return self.key_length - self.query_length if self.start is None else self.start

    def keys_of(self, region: int, columns: slice) -> Tensor:
        """Keys at some columns, rotated for a region, ``[batch, kv_heads, columns, head_dim]``."""
        keys = self.keys[region][:, :, columns]
        rotate = self.at_read[region] if self.at_read else None
        return keys if rotate is None else rotate(keys, columns)

    def with_rotated_keys(self) -> AttentionCall:
        """The call with the keys of every region rotated. Unwritten slots of a static cache stay as they are."""
        if not self.at_read:
            return self
        written = self.ctx.key_positions.shape[1]
        keys = [self.keys_of(region, slice(0, written)) for region in range(len(self.keys))]
        if self.key_length != written:
            slots = (cached[:, :, written:] for cached in self.keys)
            keys = [torch.cat(parts, dim=2) for parts in zip(keys, slots, strict=True)]
        return replace(self, keys=tuple(keys), at_read=())

    def of_samples(self, samples: slice) -> AttentionCall:
        """The call for some samples of the batch, without `rotated_keys`, whose keys are of the whole batch."""

        def select(x: Tensor) -> Tensor:
            return x[samples] if x.shape[0] > 1 else x

        def select_bias(bias: Bias) -> Bias:
            if isinstance(bias, KeyBias):
                return replace(bias, values=select(bias.values))
            if isinstance(bias, BlockBias):  # `shifted` may hold tensors of all samples
                return replace(bias, of_block=lambda block: select(bias.of_block(block)), shifted=None)
            return bias

        terms, ctx, biases = self.terms, self.ctx, map(select_bias, self.terms.bias)
        row_scale = None if terms.row_scale is None else select(terms.row_scale)
        return replace(
            self,
            queries=tuple(map(select, self.queries)),
            keys=tuple(map(select, self.keys)),
            values=select(self.values),
            terms=replace(terms, bias=tuple(biases), row_scale=row_scale),
            ctx=replace(ctx, query_positions=select(ctx.query_positions), key_positions=select(ctx.key_positions)),
            mask=None if self.mask is None else select(self.mask),
            rotated_keys=None,
        )

    def causal_mask(self, rows: slice) -> Tensor:
        """Causal mask of some queries, bool ``[1, 1, rows, key]``: True for keys that are not later.

        It compares indices, not positions: positions given by the caller may restart.
        """
        indices = torch.arange(self.key_length, device=self.values.device)
        return (indices <= indices[self.first_query :][rows][:, None])[None, None]

    def with_keys(self, stop: int) -> AttentionCall:
        """The call with its first ``stop`` keys only; for calls without a mask."""
        keys, values = tuple(key[:, :, :stop] for key in self.keys), self.values[:, :, :stop]
        ctx = replace(self.ctx, key_positions=self.ctx.key_positions[:, :stop])
        return replace(self, keys=keys, values=values, ctx=ctx, start=self.first_query)

    def mask_of(self, rows: slice) -> Tensor | None:
        """Mask of some queries. A mask with a single row serves all of them."""
        if self.mask is None or self.mask.shape[2] == 1:
            return self.mask
        return self.mask[:, :, rows]


def causal_band(band: Band, causal: bool) -> Band:
    """The band restricted to distances ≥ 0 where attention is causal."""
    return band & Band(0, None) if causal else band
