"""CoPE against its definition, gate by gate in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.schemes.content.cope import CoPE

from . import content, models
from .models import HEAD_DIM

LENGTH = 30


def scheme(causal: bool = True, **options: Any) -> CoPE:
    return content.drawn(CoPE(models.geometry(causal=causal), **options))


def blocked(causal: bool) -> Block:
    ctx = content.context(torch.arange(LENGTH)[None], causal=causal)
    return content.block(ctx, *content.queries_and_keys(LENGTH, LENGTH, kv_heads=2))


def bias_of(one: CoPE, block: Block) -> Tensor:
    bias = one.bias(content.context(block.query_positions, causal=one.geometry.causal))
    assert isinstance(bias, BlockBias)
    return bias.of_block(block).detach()


def counted(gates: Tensor, i: int, j: int) -> Tensor:
    """Σ over the keys from one token to the other, both included, ``[heads]``."""
    first, last = sorted((i, j))
    return gates[:, i, first : last + 1].sum(-1)


def definition(
    one: CoPE, query: Tensor, key: Tensor, seen: Tensor | None = None, gate_scale: float = HEAD_DIM**-0.5
) -> Tensor:
    """q_i · e[p_ij] for ``q, k [heads, L, head_dim]``, ``[heads, L, L]``, pair by pair; 0 where unseen."""
    length, table = query.shape[1], one.table.weight.double()
    index = torch.arange(length)
    if seen is None:
        seen = index[:, None] >= index if one.geometry.causal else torch.ones(length, length, dtype=torch.bool)
    query, key = query.double(), key.double()
    gates = (query @ key.mT * gate_scale).sigmoid() * seen
    bias = torch.zeros(len(query), length, length, dtype=torch.float64)
    for i in range(length):
        for j in index[seen[i]].tolist():
            p = counted(gates, i, j).clamp(max=len(table) - 1)
            low, high = p.floor().long(), p.ceil().long()
            e = (1 - (p - low))[:, None] * table[low] + (p - low)[:, None] * table[high]
            bias[:, i, j] = (query[:, i] * e).sum(-1)
    return bias


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("npos", [64, 5, 2])
def test_equals_the_definition(causal: bool, npos: int) -> None:
    one, block = scheme(causal, npos=npos), blocked(causal)
    expected = definition(one, block.query[0], block.key[0].repeat_interleave(2, 0))
    deviation = (bias_of(one, block)[0] - expected).masked_fill(~block.seen[0], 0.0)
    assert deviation.abs().max() < 2e-5  # sums of thirty gates in float32, times queries of norm 4


def test_unseen_keys_are_not_counted() -> None:
    """Padding on the left, and another document before: gates of 0."""
    one, block = scheme(), blocked(causal=True)
    seen = block.seen.clone()
    seen[..., :7] = False
    seen[..., 20:, :20] = False
    hidden = Block(**{**vars(block), "seen": seen})
    expected = definition(one, block.query[0], block.key[0].repeat_interleave(2, 0), seen[0, 0])
    assert (bias_of(one, hidden)[0] - expected).masked_fill(~seen[0], 0.0).abs().max() < 2e-5


def last_rows(block: Block, rows: int, **changed: Any) -> Block:
    """The block of the last queries of a block of all."""
    length = block.key.shape[2]
    parts = {
        "query": block.query[:, :, -rows:], "scores": block.scores[:, :, -rows:], "rows": slice(length - rows, length),
        "query_positions": block.query_positions[:, -rows:], "seen": block.seen[:, :, -rows:],
    }  # fmt: skip
    return Block(**{**vars(block), **parts, **changed})


@pytest.mark.parametrize("stored", [True, False], ids=["scores given", "scores left out"])
@pytest.mark.parametrize("closed", [False, True], ids=["gates half open", "a query with closed gates"])
def test_keys_behind_the_last_row_are_not_counted(closed: bool, stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only as many keys are read as it takes for all queries, and the bias is that of the definition all the same."""
    one, block = scheme(npos=3), blocked(causal=True)
    rows, asked, counts = 6, [], one.counts
    monkeypatch.setattr(one, "counts", lambda b, first=0: asked.append(first) or counts(b, first))
    if closed:
        block.key[..., 0] += 6.0
        block.query[0, :, -2] = -8.0 * torch.eye(HEAD_DIM)[0]
    expected = definition(one, block.query[0], block.key[0].repeat_interleave(2, 0))[:, -rows:]
    scores = block.query @ block.key.repeat_interleave(2, 1).mT * HEAD_DIM**-0.5
    last = last_rows(block, rows, scores=scores[:, :, -rows:] if stored else torch.empty(0))
    deviation = (bias_of(one, last)[0] - expected).masked_fill(~last.seen[0], 0.0)
    assert deviation.abs().max() < 2e-5 * expected.abs().max().clamp(min=1)
    assert asked[0] == LENGTH - rows - 4 * 2
    assert (asked[-1] == 0) == closed


def test_far_counts_are_exact_enough() -> None:
    """A hundred thousand gates, summed in float32 from the query: the near ones are exact, the far ones clamped."""
    gates = torch.rand(1, 1, 1, 100_000, generator=torch.Generator().manual_seed(0))
    scores = gates.logit()
    one = scheme()
    shape = torch.zeros(1, 1, 1, 1)
    positions = torch.arange(100_000)[None]
    seen = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    block = Block(shape, shape, scores, 1.0, slice(0, 1), positions[:, -1:], positions, seen)
    exact = scores.double().sigmoid().flip(-1).cumsum(-1).flip(-1)
    deviation = (one.counts(block).clamp(max=63) - exact.clamp(max=63)).abs().max()
    assert deviation < 1e-4


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_equal_the_definition(causal: bool) -> None:
    """Of the table, and of queries and keys: through the products with e and through the gates."""
    one, (query, key) = scheme(causal), content.queries_and_keys(LENGTH, LENGTH)
    leaves = (query.requires_grad_(), key.requires_grad_(), one.table.weight)
    ctx = content.context(torch.arange(LENGTH)[None], causal=causal)
    block = content.block(ctx, query, key)
    weights = torch.randn(block.scores.shape, generator=torch.Generator().manual_seed(1)) * block.seen
    ours = torch.autograd.grad((one.bias(ctx).of_block(block) * weights).sum(), leaves)
    exact = torch.autograd.grad((definition(one, query[0], key[0]) * weights[0]).sum(), leaves)
    for grad, expected in zip(ours, exact, strict=True):
        assert (grad - expected).abs().max() < 1e-4 * expected.abs().max()
