"""DeBERTa's terms against both of transformers' with copied weights, and whole models against the definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DebertaV2Config
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention as AttentionV2
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import BlockBias
from hf_posenc.schemes.content.deberta import DeBERTa

from . import content, models
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


def drawn(scheme: DeBERTa) -> DeBERTa:
    """Parameters large enough to show."""
    torch.manual_seed(3)
    for weight in scheme.parameters():
        nn.init.normal_(weight, mean=1.0 if weight.ndim == 1 else 0.0, std=0.3)
    return scheme


def scheme(causal: bool = False, **options: Any) -> DeBERTa:
    return drawn(DeBERTa(models.geometry(causal=causal), **options))


def scores_of(one: DeBERTa, project: object, query: Tensor, key: Tensor) -> Tensor:
    """Everything in the softmax, ``[batch, heads, L, L]``."""
    positions = torch.arange(query.shape[2])[None]
    causal = one.geometry.causal
    ctx = PositionContext(positions, positions, causal, contiguous=True, projections=project, layer=0)  # type: ignore[arg-type]
    bias, block = one.bias(ctx), content.block(ctx, query, key)
    assert isinstance(bias, BlockBias)
    return ((block.scores + bias.of_block(block)) * one.logit_scale()).detach()


def queries_and_keys() -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    return torch.randn(1, HEADS, LENGTH, HEAD_DIM), torch.randn(1, HEADS, LENGTH, HEAD_DIM)


def spread(rows: Tensor) -> float:
    """How far rows are from one constant each, which softmax does not see."""
    return float((rows - rows.mean(-1, keepdim=True)).abs().max())


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
    query, key = queries_and_keys()
    layer, table = version_2(one, terms, share_key)
    count = 1 + len(terms.split("+"))
    with torch.no_grad():
        bias = layer.disentangled_attention_bias(query[0], key[0], None, table, count)
    theirs = query[0] @ key[0].mT / math.sqrt(count * HEAD_DIM) + bias
    ours = scores_of(one, Projections(layer.query_proj, layer.key_proj), query, key)[0]
    assert spread(ours - theirs) < 1e-5  # their own keys of positions have a bias: one number a row
    if share_key:
        assert (ours - theirs).abs().max() < 1e-5


@pytest.mark.parametrize(("span", "buckets"), [(512, 256), (512, -1), (128, 32), (30, 9), (200, 256), (9, 4)])
def test_rows_of_the_table(span: int, buckets: int) -> None:
    one = scheme(span=span, buckets=buckets)
    half = span if buckets < 0 else buckets
    text = torch.zeros(1, 1500, 1)
    bucket = build_relative_position(text, text, buckets, span)[0]
    assert torch.equal(one.index(distances(1500)), (bucket + half).clamp(0, 2 * half - 1))


def distances(length: int) -> Tensor:
    index = torch.arange(length)
    return index[:, None] - index


def written_out(
    one: DeBERTa, query: Tensor, key: Tensor, query_codes: Tensor, key_codes: Tensor, distance: Tensor
) -> Tensor:
    """Both terms over √d, pair by pair, from ``Qr`` and ``Kr`` ``[heads, rows, head_dim]``."""
    theirs = build_relative_position(query[0], key[0], 8, 20)[0]
    assert torch.equal(distance, distances(len(distance)))
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
    query, key = queries_and_keys()
    seen = distances(LENGTH) >= (0 if causal else -LENGTH)
    codes = one.codes()
    bias = written_out(one, query[0], key[0], project.query(codes), project.key(codes), distances(LENGTH))
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
    query, key = queries_and_keys()
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
        expected = written_out(one, query[0], key[0], of_query, of_key, distances(LENGTH))[:, rows]
    seen = block.seen[0, 0]
    assert (left + moved - expected)[..., seen].abs().max() < 1e-5
    assert (left - expected)[..., seen].abs().max() > 0.1, "control: without u"
