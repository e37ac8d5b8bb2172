"""Reference attention: the formula, computed densely for one text in a single forward pass, from the scheme's hooks.

    score[i, j] = logit_scale · row_scale[i] · (query_scale[i] · q_i · k_j · scaling + Σ bias[i, j])   of visible pairs
    o_i         = Σ_j softmax_j([score[i, ·], sink])_j v_j + value bias

It is independent of the engine: it rotates queries and keys itself, evaluates bands for every pair of positions, and
uses no KV cache, attention mask, attention route or cached table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import Bias, Block, KeyBias, Terms, ToeplitzBias
from hf_posenc.forward.attention import LayerProjections, PatchedAttention, with_sink
from hf_posenc.schemes.base import Scheme


@dataclass(frozen=True)
class ReferenceTerms:
    """Terms of a scheme for one text in one layer.

    Attributes:
        scheme: scheme of the layer.
        terms: what the scheme contributes to attention.
        ctx: positions of the tokens, ``[1, token]``, and the values that the scheme derived from the hidden states.
        scaling: factor of q · k.
        softcap: bound c of the model's own score cap, c · tanh(score / c); None for no cap.
    """

    scheme: Scheme
    terms: Terms
    ctx: PositionContext
    scaling: float
    softcap: float | None = None


def reference_terms(
    attention: PatchedAttention,
    scheme: Scheme,
    positions: Tensor,
    hidden: Tensor,
    host: Mapping[str, Any],
    *,
    scaling: float | None = None,
) -> ReferenceTerms:
    """Evaluate a scheme in a layer for a text ``hidden [1, token, width]`` at ``positions [1, token]``.

    Args:
        attention: patched attention module of the layer.
        scheme: its scheme, or a copy on another device.
        hidden: input of the module.
        host: keywords of the module's attention call: the model's own score cap and sink.
        scaling: factor of q · k; by default that of the module.
    """
    ctx = PositionContext(
        positions, positions, causal=attention.is_causal, contiguous=False, hidden=hidden,
        projections=LayerProjections(attention), layer=attention.layer_idx,
    )  # fmt: skip
    extra_channels = scheme.extra_key_channels(ctx)
    ctx = ctx if extra_channels is None else replace(ctx, extra_key_channels=extra_channels.float())
    terms = scheme.terms(ctx) if host.get("s_aux") is None else with_sink(scheme.terms(ctx), host["s_aux"])
    scaling = getattr(attention, attention.score_factor) if scaling is None else scaling
    return ReferenceTerms(scheme, terms, ctx, scaling, host.get("softcap"))


def attention_output(
    ref: ReferenceTerms, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Attention output ``[1, heads, token, value_dim]`` of projected ``q``, ``k``, ``v``.

    Args:
        ref: terms of the scheme.
        q: queries ``[1, heads, token, dim]`` before any rotation.
        k: keys ``[1, kv_heads, token, dim]`` before any rotation.
        v: values ``[1, kv_heads, token, value_dim]``.
        dtype: dtype of products and sums.
    """
    q, k = ref.scheme.prepare(q, k)
    q, k, v = q.to(dtype), k.to(dtype), v.repeat_interleave(q.shape[1] // k.shape[1], dim=1).to(dtype)
    rotation = ref.scheme.rotation()
    if rotation is not None and rotation.values:
        region = ref.terms.regions[0]
        positions = coordinates(ref, rotation, region.key_at(ref.ctx.key_positions))
        v = rotate_channels(v, rotation, positions, region.key_decay_steps, ref.ctx, dtype)
    q = q if ref.terms.query_scale is None else q * ref.terms.query_scale[:, None, :, None].to(q.dtype)
    outputs = [_output_of_rows(ref, rows, turn, q, k, v, dtype) for rows, turn in _row_rotations(ref, rotation)]
    return torch.cat(outputs, dim=2)


def rotate_channels(
    x: Tensor, rotation: Rotation, positions: Tensor, decay_steps: Any, ctx: PositionContext, dtype: torch.dtype
) -> Tensor:
    """Rotate channel pairs of ``x [1, heads, token, dim]`` by ω · position and scale them by e^(decay · steps).

    Angles are float64; products have ``dtype``. ``decay_steps`` maps positions to the exponent's steps.
    """
    wide = torch.float32 if x.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
    frequencies = torch.as_tensor(rotation.frequencies, dtype=wide, device=x.device)
    at = positions[..., None] if rotation.axes is None else positions[..., list(rotation.axes)]
    heads = torch.as_tensor(rotation.by_head if rotation.differs_by_head else [1.0], dtype=wide, device=x.device)
    angle = heads[:, None, None] * (at.to(wide) * frequencies)[:, None]
    x = x.repeat_interleave(max(1, len(heads) // x.shape[1]), dim=1)  # keys that each query head rotates differently
    decay = torch.tensor(rotation.decay or [0.0], dtype=wide, device=x.device)
    size = rotation.amplitude * (decay * decay_steps(ctx.query_positions)[..., None]).exp()[:, None]
    cos, sin = (angle.cos() * size).to(dtype), (angle.sin() * size).to(dtype)
    rotated, unrotated = x[..., : rotation.dims].to(dtype), x[..., rotation.dims :].to(dtype)
    halves = rotation.layout == "half"
    a, b = rotated.chunk(2, dim=-1) if halves else (rotated[..., 0::2], rotated[..., 1::2])
    pairs = (a * cos - b * sin, b * cos + a * sin)
    joined = torch.cat(pairs, dim=-1) if halves else torch.stack(pairs, dim=-1).flatten(-2)
    return torch.cat((joined, unrotated), dim=-1)


def coordinates(ref: ReferenceTerms, rotation: Rotation, positions: Tensor) -> Tensor:
    """Coordinates of positions, one for each axis of the rotation; the positions themselves if it has no axes."""
    return positions if rotation.axes is None else ref.scheme.coordinates(positions, None)


def in_band(band: Band, query: Tensor, key: Tensor) -> Tensor:
    """Whether each pair of query and key positions lies in a band, bool."""
    distance = torch.div(query, band.chunk, rounding_mode="floor") - torch.div(key, band.chunk, rounding_mode="floor")
    bounds = (
        (distance, band.nearest, band.farthest),
        (query, band.rows_from, band.rows_until),
        (key, None, band.keys_until),
    )
    inside = torch.ones_like(query - key, dtype=torch.bool)
    for value, first, end in bounds:
        inside &= (value >= (-torch.inf if first is None else first)) & (value < (torch.inf if end is None else end))
    return inside


def _row_rotations(ref: ReferenceTerms, rotation: Rotation | None) -> Iterator[tuple[slice, Rotation | None]]:
    """Consecutive query rows that share a rotation, and that rotation."""
    by_row, count = ref.terms.row_rotation, ref.ctx.query_positions.shape[1]
    if by_row is None:
        yield slice(0, count), rotation
        return
    lengths = by_row.length_of(ref.ctx.query_positions)[0].tolist()
    start = 0
    for end in range(1, count + 1):
        if end == count or lengths[end] != lengths[start]:
            yield slice(start, end), by_row.rotation_of(lengths[start])
            start = end


def _output_of_rows(
    ref: ReferenceTerms, rows: slice, rotation: Rotation | None, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype
) -> Tensor:
    terms, ctx = ref.terms, ref.ctx
    query, key = ctx.query_positions[:, rows, None], ctx.key_positions[:, None, :]
    in_region = [in_band(region.band, query, key)[:, None] for region in terms.regions]
    visible = in_band(terms.visible, query, key)[:, None] & torch.stack(in_region).any(0)
    if ctx.causal:
        index = torch.arange(k.shape[2], device=k.device)
        visible = visible & (index[None, :] <= index[rows, None])
    blocks = [_block(ref, region, rows, region.rotated_by(rotation), q, k, visible, dtype) for region in terms.regions]
    logits = _biased(terms.bias, blocks[0], rows)
    for block, inside in zip(blocks[1:], in_region[1:], strict=True):
        logits = torch.where(inside, _biased(terms.bias, block, rows), logits)
    logits = logits * terms.logit_scale
    if terms.row_scale is not None:
        logits = logits * terms.row_scale[:, :, rows, None].to(dtype)
    logits = logits.masked_fill(~visible, -torch.inf)
    if terms.sink is not None:
        sink = terms.sink.to(dtype)[None, :, None, None].expand(*logits.shape[:3], 1)
        logits = torch.cat((logits, sink), dim=-1)
    weights = logits.softmax(-1)[..., : k.shape[2]]
    output = weights @ v
    for value in terms.values:
        output = output + value.of_weights(weights.float(), blocks[0].in_float32()).to(dtype)
    return output


def _block(
    ref: ReferenceTerms, region: Region, rows: slice, rotation: Rotation | None, q: Tensor, k: Tensor, visible: Tensor,
    dtype: torch.dtype,
) -> Block:  # fmt: skip
    query, key = region.query_at(ref.ctx.query_positions), region.key_at(ref.ctx.key_positions)
    if rotation is not None:
        ctx, by_query, by_key = ref.ctx, region.query_bands_at, region.key_bands_at
        query_at = by_query(ctx.query_positions) if by_query else coordinates(ref, rotation, query)
        key_at = by_key(ctx.key_positions) if by_key else coordinates(ref, rotation, key)
        q = rotate_channels(q, rotation, query_at, region.query_decay_steps, ctx, dtype)
        k = rotate_channels(k, rotation, key_at, region.key_decay_steps, ctx, dtype)
    q = q[:, :, rows]
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(-1, -2) * ref.scaling
    scores = scores if ref.softcap is None else ref.softcap * torch.tanh(scores / ref.softcap)
    return Block(q, k, scores, ref.scaling, rows, query[:, rows], key, visible)


def _biased(biases: tuple[Bias, ...], block: Block, rows: slice) -> Tensor:
    logits = block.scores
    for bias in biases:
        if isinstance(bias, KeyBias):
            added = bias.values[:, :, None, :] - bias.values[:, :, rows, None]  # query i has the position of key i
        elif isinstance(bias, ToeplitzBias):
            added = bias.of_distance(block.distance).transpose(0, 1)
        else:
            added = bias.of_block(block.in_float32())
        logits = logits + added.to(logits.dtype)
    return logits
