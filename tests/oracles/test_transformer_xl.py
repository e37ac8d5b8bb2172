"""Transformer-XL against XLNet's attention with copied weights, and against the definition with every R written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import XLNetConfig, XLNetModel
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import BlockBias
from hf_posenc.schemes.content.transformer_xl import TransformerXL

from . import content, models, naive
from .models import HEAD_DIM, HEADS, WIDTH

LENGTH = 40
ROUNDING = 2e-5  # logits of deviation 3 in float32


def drawn(scheme: TransformerXL, seed: int = 3) -> TransformerXL:
    """Parameters large enough to show."""
    torch.manual_seed(seed)
    for weight in scheme.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return scheme


def scheme(causal: bool, **options: Any) -> TransformerXL:
    return drawn(TransformerXL(models.geometry(causal=causal), **options))


def queries_and_keys(queries: int, keys: int, kv_heads: int = HEADS, batch: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    return torch.randn(batch, HEADS, queries, HEAD_DIM), torch.randn(batch, kv_heads, keys, HEAD_DIM)


def bias_of(one: TransformerXL, ctx: PositionContext, query: Tensor, key: Tensor, rows: slice = slice(None)) -> Tensor:
    bias = one.bias(ctx)
    assert isinstance(bias, BlockBias)
    return bias.of_block(content.block(ctx, query, key, rows)).detach()


def definition(one: TransformerXL, distance: Tensor, query: Tensor, key: Tensor, layer: int = 0) -> Tensor:
    """u · k_j + (q_i + v) · W_R R_{i−j} over √d in float64 for ``distance [L, L]``: R of every pair is written out."""
    if one.clamp_len > 0:
        distance = distance.clamp(-one.clamp_len, one.clamp_len)
    angles = distance.double()[..., None] * naive.rope(WIDTH)
    encodings = torch.cat((angles.sin(), angles.cos()), dim=-1)
    codes = (encodings @ one.project[layer].weight.double().T).unflatten(-1, (HEADS, HEAD_DIM)).detach()
    u, v = one.u.detach().double()[:, None], one.v.detach().double()[:, None]
    of_content = (u * key.double()).sum(-1)[..., None, :]
    of_distance = torch.einsum("...hid,ijhd->...hij", query.double() + v, codes)
    return (of_content + of_distance) / math.sqrt(HEAD_DIM)


def xlnet(one: TransformerXL) -> tuple[XLNetModel, XLNetRelativeAttention]:
    """XLNet with the scheme's u, v and W_R."""
    kind = "uni" if one.geometry.causal else "bi"
    config = XLNetConfig(d_model=WIDTH, n_head=HEADS, n_layer=1, d_inner=32, vocab_size=10, attn_type=kind,
                         clamp_len=one.clamp_len, dropout=0.0)  # fmt: skip
    model = XLNetModel(config).eval()
    layer = model.layer[0].rel_attn
    with torch.no_grad():
        layer.r.copy_(one.project[0].weight.T.unflatten(-1, (HEADS, HEAD_DIM)))
        layer.r_w_bias.copy_(one.u)
        layer.r_r_bias.copy_(one.v)
    return model, layer


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("clamp_len", [-1, 7])
@pytest.mark.parametrize(("queries", "keys"), [(LENGTH, LENGTH), (5, LENGTH)], ids=["text", "behind a memory"])
def test_equals_xlnet(causal: bool, clamp_len: int, queries: int, keys: int) -> None:
    """Its relative shift, where a table is gathered here; attention weights, as transformers computes them."""
    one = scheme(causal, clamp_len=clamp_len)
    query, key = queries_and_keys(queries, keys)
    positions = torch.arange(keys)[None]
    ctx = content.context(positions[:, keys - queries :], keys=positions, causal=causal)
    block = content.block(ctx, query, key)
    ours = (block.scores + bias_of(one, ctx, query, key)).masked_fill(~block.seen, -math.inf).softmax(-1)
    model, layer = xlnet(one)
    with torch.no_grad():
        encodings = model.relative_positional_encoding(queries, keys, bsz=1)
        codes = torch.einsum("ibh,hnd->ibnd", encodings, layer.r)
        hidden = (~block.seen).float()[0].permute(1, 2, 0)[..., None]  # [query, key, batch, 1 head]
        first = [x.permute(2, 0, 1, 3) for x in (query, key, key)]
        _, weights = layer.rel_attn_core(*first, codes, attn_mask=hidden, output_attentions=True)
    assert (weights.permute(2, 3, 0, 1) - ours).abs().max() < 1e-5
    mirrored = model.relative_positional_encoding(queries, keys, bsz=1).flip(0)  # control: the other sign of distance
    with torch.no_grad():
        rotated = torch.einsum("ibh,hnd->ibnd", mirrored, layer.r)
        _, others = layer.rel_attn_core(*first, rotated, attn_mask=hidden, output_attentions=True)
    assert (others.permute(2, 3, 0, 1) - ours).abs().max() > 0.05


POSITIONS = {
    "in a row": torch.arange(LENGTH)[None],
    "of padded texts": torch.stack((torch.arange(LENGTH), (torch.arange(LENGTH) - 9).clamp(min=0))),
    "far apart": torch.arange(LENGTH)[None] * 1000,
    "between whole numbers": torch.arange(LENGTH, dtype=torch.float64)[None] * 0.75 + 0.1,
}


@pytest.mark.parametrize("positions_kind", POSITIONS)
@pytest.mark.parametrize("clamp_len", [-1, 7])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [slice(None), slice(30, 33)], ids=["all rows", "three rows"])
def test_every_computation_equals_the_definition(
    positions_kind: str, clamp_len: int, causal: bool, rows: slice
) -> None:
    """Gathered from a table or multiplied out, of as many rows as there are, with shared key heads."""
    one, positions = scheme(causal, clamp_len=clamp_len), POSITIONS[positions_kind]
    query, key = queries_and_keys(LENGTH, LENGTH, kv_heads=2, batch=len(positions))
    ctx = content.context(positions, causal=causal, contiguous=positions_kind == "in a row")
    assert (one.reach(ctx) is None) == (
        positions_kind == "between whole numbers" or (positions_kind == "far apart" and clamp_len < 0)
    )
    block = content.block(ctx, query, key, rows)
    expected = torch.stack(
        [
            definition(one, p[:, None] - p, q, k.repeat_interleave(2, 0))[:, rows]
            for p, q, k in zip(positions, query, key, strict=True)
        ]
    )
    deviation = (bias_of(one, ctx, query, key, rows) - expected).masked_fill(~block.seen, 0.0)
    assert deviation.abs().max() < ROUNDING
