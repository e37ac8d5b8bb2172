"""DeBERTa and Transformer-XL against transformers' own attention with copied weights, and against their definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DebertaV2Config, XLNetConfig, XLNetModel
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention as AttentionV2
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import BlockBias
from hf_posenc.schemes.content.deberta import DeBERTa
from hf_posenc.schemes.content.transformer_xl import TransformerXL

from . import content, models, naive
from .models import HEAD_DIM, HEADS, WIDTH

LENGTH = 50
SMALL = {"span": 20, "buckets": 8}  # beyond which this text reaches
TERMS = ["c2p+p2c", "c2p", "p2c"]


class Projections:
    """Two linear layers, as the attention of a model has them."""

    def __init__(self, query: nn.Linear, key: nn.Linear) -> None:
        self.linear = {"query": query, "key": key}

    def query(self, x: Tensor) -> Tensor:
        return self.linear["query"](x).unflatten(-1, (-1, HEAD_DIM)).transpose(0, 1)

    def key(self, x: Tensor) -> Tensor:
        return self.linear["key"](x).unflatten(-1, (-1, HEAD_DIM)).transpose(0, 1)


def scheme(causal: bool = False, **options: Any) -> DeBERTa:
    one = DeBERTa(models.geometry(causal=causal), **options)
    torch.manual_seed(3)
    for weight in one.parameters():
        nn.init.normal_(weight, mean=1.0 if weight.ndim == 1 else 0.0, std=0.3)
    return one


def scores_of(one: DeBERTa, project: object, query: Tensor, key: Tensor) -> Tensor:
    """Everything in the softmax, ``[batch, heads, L, L]``."""
    positions = torch.arange(query.shape[2])[None]
    causal = one.geometry.causal
    ctx = PositionContext(positions, positions, causal, contiguous=True, projections=project, layer=0)  # type: ignore[arg-type]
    bias, block = one.bias(ctx), content.block(ctx, query, key)
    assert isinstance(bias, BlockBias)
    return ((block.scores + bias.of_block(block)) * one.logit_scale()).detach()


def version_2(one: DeBERTa, terms: str, share_key: bool) -> tuple[AttentionV2, Tensor]:
    """Transformers' layer with the scheme's projections, and the table it is given."""
    config = DebertaV2Config(
        hidden_size=WIDTH, num_attention_heads=HEADS, relative_attention=True, pos_att_type=terms.split("+"),
        max_relative_positions=20, position_buckets=8 if one.side == 8 else -1, share_att_key=share_key,
        hidden_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(4)
    layer = AttentionV2(config).eval()
    if not share_key:
        copied = {"pos_key_proj": "to_key", "pos_query_proj": "to_query"}
        for theirs, ours in copied.items():
            if hasattr(layer, theirs):
                getattr(layer, theirs).load_state_dict(getattr(one.own[0], ours).state_dict(), strict=False)
    table = one.table.weight
    if one.norm is not None:
        table = nn.functional.layer_norm(table, (WIDTH,), one.norm.weight, one.norm.bias, 1e-7)
    return layer, table.detach()


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("buckets", [8, -1])
@pytest.mark.parametrize("share_key", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_equals_version_2(terms: str, buckets: int, share_key: bool, norm: bool) -> None:
    one = scheme(terms=terms, span=20, buckets=buckets, share_key=share_key, norm=norm)
    query, key = content.queries_and_keys(LENGTH, LENGTH)
    layer, table = version_2(one, terms, share_key)
    count = 1 + len(terms.split("+"))
    with torch.no_grad():
        bias = layer.disentangled_attention_bias(query[0], key[0], None, table, count)
    theirs = query[0] @ key[0].mT / math.sqrt(count * HEAD_DIM) + bias
    ours = scores_of(one, Projections(layer.query_proj, layer.key_proj), query, key)[0]
    assert content.spread(ours - theirs) < 1e-5  # their own keys of positions have a bias: one number a row
    if share_key:
        assert (ours - theirs).abs().max() < 1e-5


@pytest.mark.parametrize(("span", "buckets"), [(512, 256), (512, -1), (128, 32), (30, 9), (200, 256), (9, 4)])
def test_rows_of_the_table(span: int, buckets: int) -> None:
    one = scheme(span=span, buckets=buckets)
    half = span if buckets < 0 else buckets
    text = torch.zeros(1, 1500, 1)
    bucket = build_relative_position(text, text, buckets, span)[0]
    assert torch.equal(one.index(naive.distances(1500)), (bucket + half).clamp(0, 2 * half - 1))


def written_out(
    one: DeBERTa, query: Tensor, key: Tensor, query_codes: Tensor, key_codes: Tensor, distance: Tensor
) -> Tensor:
    """Both terms over √d, pair by pair, from ``Qr`` and ``Kr`` ``[heads, rows, head_dim]``."""
    theirs = build_relative_position(query[0], key[0], 8, 20)[0]
    assert torch.equal(distance, naive.distances(len(distance)))
    here, there = (torch.clamp(b + 8, 0, 15) for b in (theirs, theirs.mT if one.mirrored else theirs))
    c2p = torch.einsum("hid,hijd->hij", query, key_codes[:, here])
    p2c = torch.einsum("hjd,hijd->hij", key, query_codes[:, there])
    return (c2p + p2c) / math.sqrt(HEAD_DIM)


@pytest.mark.parametrize("p2c_index", ["code", "paper"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_index_of_the_last_term(p2c_index: str, causal: bool) -> None:
    """δ(i, j) as in the code, δ(j, i) as it is printed; a decoder reads the same from half of the table."""
    one = scheme(causal=causal, p2c_index=p2c_index, **SMALL)
    project = Projections(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    query, key = content.queries_and_keys(LENGTH, LENGTH)
    seen = naive.distances(LENGTH) >= (0 if causal else -LENGTH)
    codes = one.codes()
    bias = written_out(one, query[0], key[0], project.query(codes), project.key(codes), naive.distances(LENGTH))
    expected = (query[0] @ key[0].mT / math.sqrt(HEAD_DIM) + bias) / math.sqrt(3)
    ours = scores_of(one, project, query, key)[0]
    assert (ours - expected)[:, seen].abs().max() < 1e-5
    one.mirrored = not one.mirrored  # control
    assert (scores_of(one, project, query, key)[0] - expected)[:, seen].abs().max() > 0.1


@pytest.mark.parametrize("p2c_index", ["code", "paper"])
@pytest.mark.parametrize("terms", ["c2p+p2c", "p2c"])
@pytest.mark.parametrize(("first", "kept"), [(0, None), (LENGTH - 1, None), (LENGTH - 1, {})])  # {}: with a KV cache
def test_a_decoder_reads_far_keys_with_its_queries(p2c_index: str, terms: str, first: int, kept: Any) -> None:
    """u · k of what is added to the queries, and what is left, are both terms."""
    one = scheme(causal=True, p2c_index=p2c_index, terms=terms, **SMALL)
    project = Projections(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    query, key = content.queries_and_keys(LENGTH, LENGTH)
    positions = torch.arange(LENGTH)[None]
    ctx = PositionContext(positions, positions, True, contiguous=True, projections=project, layer=0, kept=kept)  # type: ignore[arg-type]
    rows = slice(first, LENGTH)
    with torch.no_grad():
        bias, block = one.bias(ctx), content.block(ctx, query, key, rows)
        assert bias.shifted is not None
        moved = torch.einsum("hd,bhjd->bhj", bias.shifted.by, key)[:, :, None] / math.sqrt(HEAD_DIM)
        left = bias.shifted.rest(block)
        codes = one.codes()
        of_query, of_key = project.query(codes), project.key(codes) * (1 if "c2p" in terms else 0)
        expected = written_out(one, query[0], key[0], of_query, of_key, naive.distances(LENGTH))[:, rows]
    seen = block.seen[0, 0]
    assert (left + moved - expected)[..., seen].abs().max() < 1e-5
    assert (left - expected)[..., seen].abs().max() > 0.1, "control: without u"


TEXT = 40
ROUNDING = 2e-5  # logits of deviation 3 in float32


def xl(causal: bool, **options: Any) -> TransformerXL:
    return content.drawn(TransformerXL(models.geometry(causal=causal), **options), std=0.3)


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
@pytest.mark.parametrize(("queries", "keys"), [(TEXT, TEXT), (5, TEXT)], ids=["text", "behind a memory"])
def test_equals_xlnet(causal: bool, clamp_len: int, queries: int, keys: int) -> None:
    """Its relative shift, where a table is gathered here; attention weights, as transformers computes them."""
    one = xl(causal, clamp_len=clamp_len)
    query, key = content.queries_and_keys(queries, keys)
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
    "in a row": torch.arange(TEXT)[None],
    "of padded texts": torch.stack((torch.arange(TEXT), (torch.arange(TEXT) - 9).clamp(min=0))),
    "far apart": torch.arange(TEXT)[None] * 1000,
    "between whole numbers": torch.arange(TEXT, dtype=torch.float64)[None] * 0.75 + 0.1,
}


@pytest.mark.parametrize("positions_kind", POSITIONS)
@pytest.mark.parametrize("clamp_len", [-1, 7])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [slice(None), slice(30, 33)], ids=["all rows", "three rows"])
def test_every_computation_equals_the_definition(
    positions_kind: str, clamp_len: int, causal: bool, rows: slice
) -> None:
    """Gathered from a table or multiplied out, of as many rows as there are, with shared key heads."""
    one, positions = xl(causal, clamp_len=clamp_len), POSITIONS[positions_kind]
    query, key = content.queries_and_keys(TEXT, TEXT, kv_heads=2, batch=len(positions))
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
