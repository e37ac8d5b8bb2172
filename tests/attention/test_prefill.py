"""Every route on a whole text, forward and backward, against dense float64 attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hf_posenc.attention import dispatch
from hf_posenc.attention.routes import dense_blocks, hankel_view, sliding_window
from hf_posenc.core.terms import Block, BlockBias, ShiftedQuery, Terms

from .formula import ALL, BOTH_WAYS, LEARNED, Problem, mix

FAST = {
    "key bias": "key_bias",
    "toeplitz": "toeplitz_bias",
    "learned table": "toeplitz_bias",
    "two tables": "toeplitz_bias",
    "two regions": "regions_cpu",
    "chunks": "regions_cpu",
    "first keys": "regions_cpu",
    "split by row": "regions_cpu",
    "sink": "dense_blocks",
    "window": "sliding_window",
    "rows": "length_rotation",
    "content": "dense_blocks",
}
EDGES = sorted(
    {
        1,
        2,
        dense_blocks.ROWS - 1,
        dense_blocks.ROWS,
        dense_blocks.ROWS + 1,
        hankel_view.ROWS - 1,
        sliding_window.ROWS,
        sliding_window.ROWS + 1,
    }
)


def test_routes_are_named_like_their_modules() -> None:
    modules = {name: one.attend.__module__.rpartition(".")[2] for name, one in dispatch.ROUTES.items()}
    assert list(modules) == list(modules.values())


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_causal(kind: str, kv_heads: int) -> None:
    problem = Problem(kind, queries=300, kv_heads=kv_heads, batch=2 if kind != "rows" else 1)
    assert problem.deviation() <= problem.limit


@pytest.mark.parametrize("kind", BOTH_WAYS)
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_bidirectional(kind: str, kv_heads: int) -> None:
    problem = Problem(kind, queries=300, causal=False, kv_heads=kv_heads)
    assert problem.deviation() <= problem.limit


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_causal_gradients(kind: str, kv_heads: int) -> None:
    problem = Problem(kind, queries=270 if kind != "rows" else 40, kv_heads=kv_heads, grad=True)
    assert max(problem.gradient_deviations()) <= problem.limit


@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_bidirectional_gradients(kind: str) -> None:
    problem = Problem(kind, queries=270, causal=False, grad=True)
    assert max(problem.gradient_deviations()) <= problem.limit


@pytest.mark.parametrize("length", EDGES)
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "rows"])
def test_lengths_near_the_block_size(kind: str, length: int) -> None:
    problem = Problem(kind, queries=length, batch=1, heads=2, kv_heads=1, head_dim=6, grad=True)
    assert problem.deviation() <= problem.limit
    # A row over one key has no gradient but in its value: relative to nothing, everything is large.
    assert length == 1 or max(problem.gradient_deviations()) <= problem.limit


@pytest.mark.parametrize("length", [3, 6, 7, 8])
@pytest.mark.parametrize("kind", ["two regions", "window", "regions with a bias", "rows"])
def test_lengths_near_the_window(kind: str, length: int) -> None:
    problem = Problem(kind, queries=length, grad=True)
    assert problem.deviation() <= problem.limit
    assert max(problem.gradient_deviations()) <= problem.limit


@pytest.mark.parametrize("kind", LEARNED)
def test_only_inputs_that_require_gradients_get_one(kind: str) -> None:
    """A frozen base under a learned bias: the table's gradient does not depend on who else has one."""
    problem = Problem(kind, queries=140, batch=1, grad=True)
    problem.q, problem.k, problem.v = (
        [t.detach() for t in problem.q],
        [t.detach() for t in problem.k],
        problem.v.detach(),
    )
    problem.engine().square().sum().backward()
    exact = [t.detach().double() for t in problem.leaves[:-1]] + [problem.learned.detach().double().requires_grad_()]
    problem.expected(leaves=exact).square().sum().backward()
    deviation = (problem.learned.grad.double() - exact[-1].grad).abs().max() / exact[-1].grad.abs().max()
    assert float(deviation) <= problem.limit


@pytest.mark.parametrize("kind", FAST)
def test_the_expected_route_is_taken(kind: str) -> None:
    assert Problem(kind).route() == FAST[kind]


@pytest.mark.parametrize("queries", [1, 140])
def test_shifted_queries_are_the_same_as_the_bias(queries: int) -> None:
    """Both forms of u · k against the formula; what is left of the bias reads the queries without u."""
    problem = Problem("content", queries=queries, keys=150, kv_heads=2)
    u = torch.randn(problem.heads, problem.head_dim, generator=torch.Generator().manual_seed(2))
    call = problem.call()
    (left,) = call.terms.bias

    def whole(block: Block) -> Tensor:
        key = block.key.repeat_interleave(problem.heads // problem.kv_heads, 1)
        return left.of_block(block) + block.scaling * torch.einsum("hd,bhjd->bhj", u, key)[:, :, None]

    bias = BlockBias(whole, reads_scores=False, shifted=ShiftedQuery(u, left.of_block))
    call = replace(call, terms=Terms(bias=(bias,)))
    query, key, value, learned = (t.double() for t in problem.leaves)
    distance = problem.query_positions()[:, :, None] - problem.key_positions()[:, None, :]
    of_content = problem.position.bias(distance, query, learned)
    moved = query + u.double()[:, None]
    expected = mix([moved], [key], value, problem.seen(), scaling=problem.scaling, bias=of_content)
    with torch.no_grad():
        assert dispatch.route(call) == "content_bias"
        shifted = dispatch.attend(call).double()
    assert (shifted - expected).abs().max() <= problem.limit
    assert (dense_blocks.attend(call).double() - expected).abs().max() <= problem.limit
    assert (problem.expected() - expected).abs().max() > 0.1, "control: without u"
