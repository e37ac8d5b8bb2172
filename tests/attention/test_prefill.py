"""Every route on a whole text, forward and backward, against dense float64 attention."""

from __future__ import annotations

import pytest

from hf_posenc.attention import dispatch
from hf_posenc.attention.routes import dense_blocks, hankel_view, sliding_window

from .formula import ALL, BOTH_WAYS, Problem

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


@pytest.mark.parametrize("kind", FAST)
def test_the_expected_route_is_taken(kind: str) -> None:
    assert Problem(kind).route() == FAST[kind]
