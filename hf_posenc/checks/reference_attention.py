"""Attention from its definition, dense, of one text read at once: what a scheme says, and none of what computes it.

    score[i, j] = logit_scale · row_scale[i] · (query_scale[i] · q_i · k_j · scaling + Σ bias[i, j])   of visible pairs
    o_i         = Σ_j softmax_j([score[i, ·], sink])_j v_j + value bias

Of the package only the hooks of the scheme take part. Queries and keys are turned here, bands are read pair by pair,
and there is no cache, no mask, no route and no table that is kept. Positions are those the check knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import (
    Bias,
    Block,
    KeyBias,
    Terms,
    ToeplitzBias,
)
from hf_posenc.patches.attention import AttentionOutput, LayerProjections, PatchedAttention
from hf_posenc.schemes.base import Scheme


@dataclass(frozen=True)
class ReferenceTerms:
    """What a scheme says of one text in one layer.

    Attributes:
        scheme: of that layer.
        terms: what it adds to attention.
        ctx: where the tokens stand, ``[1, token]``.
        scaling: factor of q · k.
    """

    scheme: Scheme
    terms: Terms
    ctx: PositionContext
    scaling: float


def reference_terms(attention: PatchedAttention, positions: Tensor, hidden: Tensor) -> ReferenceTerms:
    """What the scheme of a layer says of a text ``hidden [1, token, width]`` at ``positions [1, token]``."""
    ctx = PositionContext(
        positions, positions, causal=attention.is_causal, contiguous=False, hidden=hidden,
        projections=LayerProjections(attention), layer=attention.layer_idx,
    )  # fmt: skip
    beside = attention.scheme.extra_key_channels(ctx)
    ctx = ctx if beside is None else replace(ctx, carried=beside.float())
    return ReferenceTerms(attention.scheme, attention.scheme.terms(ctx), ctx, attention.scaling)


def mix(said: ReferenceTerms, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Mixed values ``[1, heads, token, value_dim]`` of raw ``q``, ``k``, ``v`` (``[1, (kv_)heads, token, dim]``).

    Args:
        said: what position does.
        q, k, v: projected, before anything of position.
        dtype: of products and sums.
    """
    q, k = said.scheme.prepare(q, k)
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.to(dtype), k.to(dtype), v.repeat_interleave(groups, dim=1).to(dtype)
    turns = said.scheme.rotation()
    if turns is not None and turns.values:
        region = said.terms.regions[0]
        v = turned(
            v, turns, placed(said, turns, region.key_at(said.ctx.key_positions)), region.key_age, said.ctx, dtype
        )
    q = q if said.terms.query_scale is None else q * said.terms.query_scale[:, None, :, None].to(q.dtype)
    parts = [
        _mix_rows(said, rows, rotation, q, k.repeat_interleave(groups, dim=1), v, dtype)
        for rows, rotation in _rotations(said, turns)
    ]
    return torch.cat(parts, dim=2)


def turned(
    x: Tensor, rotation: Rotation, places: Tensor, age_of: Any, ctx: PositionContext, dtype: torch.dtype
) -> Tensor:
    """``x [1, heads, token, dim]``: pairs of channels turned by ωp and scaled by e^(decay·age); products in ``dtype``.

    Angles are float64 whatever that is.
    """
    frequencies = torch.as_tensor(rotation.frequencies, dtype=torch.float64, device=x.device)
    at = places[..., None] if rotation.axes is None else places[..., list(rotation.axes)]
    angle = at.double() * frequencies
    decay = torch.tensor(rotation.decay or [0.0], dtype=torch.float64, device=x.device)
    size = rotation.amplitude * (decay * age_of(ctx.query_positions)[..., None]).exp()
    cos, sin = (angle.cos() * size).to(dtype)[:, None], (angle.sin() * size).to(dtype)[:, None]
    own, left = x[..., : rotation.dims].to(dtype), x[..., rotation.dims :].to(dtype)
    halves = rotation.layout == "half"
    a, b = own.chunk(2, dim=-1) if halves else (own[..., 0::2], own[..., 1::2])
    there = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat((torch.cat(there, dim=-1) if halves else torch.stack(there, dim=-1).flatten(-2), left), dim=-1)


def placed(said: ReferenceTerms, rotation: Rotation, places: Tensor) -> Tensor:
    """Where tokens stand, in as many coordinates as the rotation has."""
    return places if rotation.axes is None else said.scheme.coordinates(places, None)


def inside(band: Band, query: Tensor, key: Tensor) -> Tensor:
    """Which pairs of positions lie in a band, bool."""
    apart = torch.div(query, band.chunk, rounding_mode="floor") - torch.div(key, band.chunk, rounding_mode="floor")
    bounds = (
        (apart, band.nearest, band.farthest),
        (query, band.rows_from, band.rows_until),
        (key, None, band.keys_until),
    )
    found = torch.ones_like(query - key, dtype=torch.bool)
    for value, first, end in bounds:
        found &= (value >= (-torch.inf if first is None else first)) & (value < (torch.inf if end is None else end))
    return found


@contextmanager
def by_definition(model: nn.Module, positions: Tensor) -> Iterator[list[ReferenceTerms]]:
    """In the block every patched layer of a model mixes one text at ``positions [1, token]`` by `mix`.

    Gives a list to which every layer adds what its scheme said.
    """
    layers, heard = attentions(model), []
    stand = layers[0].scheme.reposition(positions, training=False)

    def attend(
        own: Any, layer: PatchedAttention, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, **_: Any
    ) -> AttentionOutput:
        heard.append(reference_terms(layer, stand, hidden))
        return mix(heard[-1], q, k, v).to(v.dtype).transpose(1, 2), None

    with replaced(layers, attend):
        yield heard


@contextmanager
def replaced(layers: list[PatchedAttention], attend: Any) -> Iterator[None]:
    """In the block ``attend(own, layer, …)`` answers for every layer's own."""
    kept = [dict(layer.__dict__) for layer in layers]
    for layer in layers:
        layer.__dict__["attend"] = partial(attend, layer.attend, layer)
    try:
        yield
    finally:
        for layer, before in zip(layers, kept, strict=True):
            layer.__dict__.pop("attend")
            layer.__dict__.update({name: own for name, own in before.items() if name == "attend"})


def attentions(model: nn.Module) -> list[PatchedAttention]:
    """The patched attention modules, in the order of the layers."""
    return [module for module in model.modules() if isinstance(module, PatchedAttention)]


def _rotations(said: ReferenceTerms, turns: Rotation | None) -> Iterator[tuple[slice, Rotation | None]]:
    """Rows that share a rotation, and that."""
    by_row, count = said.terms.rows, said.ctx.query_positions.shape[1]
    if by_row is None:
        yield slice(0, count), turns
        return
    lengths = by_row.length_of(said.ctx.query_positions)[0].tolist()
    start = 0
    for end in range(1, count + 1):
        if end == count or lengths[end] != lengths[start]:
            yield slice(start, end), by_row.rotation_of(lengths[start])
            start = end


def _mix_rows(
    said: ReferenceTerms, rows: slice, rotation: Rotation | None, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype
) -> Tensor:
    terms, ctx = said.terms, said.ctx
    here, there = ctx.query_positions[:, rows, None], ctx.key_positions[:, None, :]
    claims = [inside(region.band, here, there)[:, None] for region in terms.regions]
    seen = inside(terms.visible, here, there)[:, None] & torch.stack(claims).any(0)
    if ctx.causal:
        index = torch.arange(k.shape[2], device=k.device)
        seen = seen & (index[None, :] <= index[rows, None])
    blocks = [_block(said, region, rows, region.rotation or rotation, q, k, seen, dtype) for region in terms.regions]
    logits = _biased(terms.bias, blocks[0], rows)
    for block, mine in zip(blocks[1:], claims[1:], strict=True):
        logits = torch.where(mine, _biased(terms.bias, block, rows), logits)
    logits = logits * terms.logit_scale
    if terms.row_scale is not None:
        logits = logits * terms.row_scale[:, :, rows, None].to(dtype)
    logits = logits.masked_fill(~seen, -torch.inf)
    if terms.sink is not None:
        sink = terms.sink.to(dtype)[None, :, None, None].expand(*logits.shape[:3], 1)
        logits = torch.cat((logits, sink), dim=-1)
    weights = logits.softmax(-1)[..., : k.shape[2]]
    mixed = weights @ v
    for value in terms.values:
        mixed = mixed + value.of_weights(weights.float(), _single(blocks[0])).to(dtype)
    return mixed


def _block(
    said: ReferenceTerms, region: Region, rows: slice, rotation: Rotation | None, q: Tensor, k: Tensor, seen: Tensor,
    dtype: torch.dtype,
) -> Block:  # fmt: skip
    here, there = region.query_at(said.ctx.query_positions), region.key_at(said.ctx.key_positions)
    if rotation is not None:
        q = turned(q, rotation, placed(said, rotation, here), region.query_age, said.ctx, dtype)
        k = turned(k, rotation, placed(said, rotation, there), region.key_age, said.ctx, dtype)
    q = q[:, :, rows]
    scores = q @ k.transpose(-1, -2) * said.scaling
    return Block(q, k, scores, said.scaling, rows, here[:, rows], there, seen)


def _biased(biases: tuple[Bias, ...], block: Block, rows: slice) -> Tensor:
    logits = block.scores
    for bias in biases:
        if isinstance(bias, KeyBias):
            added = bias.values[:, :, None, :] - bias.values[:, :, rows, None]  # query i stands where key i does
        elif isinstance(bias, ToeplitzBias):
            added = bias.of_distance(block.distance).transpose(0, 1)
        else:
            added = bias.of_block(_single(block))
        logits = logits + added.to(logits.dtype)
    return logits


def _single(block: Block) -> Block:
    """A block as biases of content are promised it: float32."""
    return replace(block, query=block.query.float(), key=block.key.float(), scores=block.scores.float())
