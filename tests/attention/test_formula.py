"""Every kind of terms through the engine, on texts, caches and masks, against dense float64 attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_posenc.attention import dispatch
from hf_posenc.attention.routes import dense_blocks, hankel_view, sliding_window

from .formula import ALL, BOTH_WAYS, Problem, tokens

ROUTES = {
    "key bias": "key_bias", "toeplitz": "toeplitz_bias", "learned table": "toeplitz_bias",
    "two tables": "toeplitz_bias", "two regions": "regions_cpu", "chunks": "regions_cpu", "first keys": "regions_cpu",
    "split by row": "regions_cpu", "sink": "regions_cpu", "window": "sliding_window", "rows": "length_rotation",
    "content": "dense_blocks",
}  # fmt: skip
EDGES = sorted({1, 2, dense_blocks.ROWS, dense_blocks.ROWS + 1, hankel_view.ROWS - 1, sliding_window.ROWS + 1})
LENGTH = 40
LEFT = tokens([0] * 11 + [1] * 29, [1] * 40)
RIGHT = tokens([1] * 29 + [0] * 11, [1] * 40)
BOTH = tokens([0] * 3 + [1] * 29 + [0] * 8, [0] * 9 + [1] * 31)
DOCUMENTS = tokens([0] * 13 + [1] * 27, [0] * 5 + [1] * 20 + [2] * 15)
# transformers gives a bool mask wherever the call is neither a square nor one row.
CASES: dict[str, dict[str, Any]] = {
    "one key head": {"queries": 300, "kv_heads": 1},
    "two key heads": {"queries": 300},
    "a new token": {"queries": 1, "keys": 140, "kv_heads": 1},
    "a new token of two": {"queries": 1, "keys": 2, "kv_heads": 4},
    "a chunk": {"queries": 30, "keys": 300, "mask_kind": "bool"},
    "a chunk on a token": {"queries": 299, "keys": 300, "mask_kind": "bool"},
    "padded left": {"queries": LENGTH, "real": LEFT, "mask_kind": "bool"},
    "padded left, float": {"queries": LENGTH, "real": LEFT, "mask_kind": "float"},
    "padded right": {"queries": LENGTH, "real": RIGHT, "mask_kind": "bool"},
    "padded on both sides": {"queries": LENGTH, "real": BOTH, "mask_kind": "float"},
    "a padded new token": {"queries": 1, "keys": LENGTH, "real": LEFT, "mask_kind": "bool"},
    "a padded chunk": {"queries": 4, "keys": LENGTH, "real": LEFT, "mask_kind": "bool"},
    "packed": {"queries": LENGTH, "document": DOCUMENTS, "mask_kind": "bool"},
}
TRAINED: dict[str, dict[str, Any]] = {
    "one key head": {"queries": 270, "kv_heads": 1},
    "a head for each": {"queries": 270, "kv_heads": 4},
    "a chunk": {"queries": 20, "keys": 33, "mask_kind": "bool"},
    "packed": CASES["packed"],
}
BIDIRECTIONAL: dict[str, dict[str, Any]] = {
    "a text": {"queries": 300},
    "padded left": CASES["padded left"],
    "padded on both sides": CASES["padded on both sides"],
}


def sized(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """The formula of rotations of rows goes row by row, so that its texts are shorter."""
    if kind != "rows":
        return given
    short = {"queries": {300: 60, 299: 59, 270: 40}, "keys": {300: 60, 140: 60}}
    return {name: short[name].get(value, value) if name in short else value for name, value in given.items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ALL)
def test_causal(kind: str, case: str) -> None:
    problem = Problem(kind, **sized(kind, CASES[case]))
    assert problem.deviation() <= problem.limit


@pytest.mark.parametrize("case", TRAINED)
@pytest.mark.parametrize("kind", ALL)
def test_gradients(kind: str, case: str) -> None:
    problem = Problem(kind, grad=True, **sized(kind, TRAINED[case]))
    assert max(problem.gradient_deviations()) <= problem.limit


@pytest.mark.parametrize("case", BIDIRECTIONAL)
@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_bidirectional(kind: str, case: str) -> None:
    problem = Problem(kind, causal=False, **BIDIRECTIONAL[case])
    assert problem.deviation() <= problem.limit


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


@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_a_mask_with_one_row_serves_all_queries(kind: str) -> None:
    """``[batch, 1, 1, key]``, as callers write it by hand; long enough for a second block of queries."""
    real = tokens([0] * 11 + [1] * 289, [1] * 300)
    problem = Problem(kind, queries=300, real=real, mask_kind="bool", causal=False)
    whole = problem.engine()
    problem.mask = lambda: real[:, None, None, :].bool()  # type: ignore[method-assign]
    torch.testing.assert_close(problem.engine(), whole)


@pytest.mark.parametrize(("queries", "unwritten"), [(1, 39), (8, 20)])
@pytest.mark.parametrize("kind", ALL)
def test_static_cache(kind: str, queries: int, unwritten: int) -> None:
    """Keys behind the newest query are not written yet: the mask hides them, whatever lies there."""
    problem = Problem(kind, queries=queries, keys=48, unwritten=unwritten, mask_kind="bool")
    expected = problem.expected()
    with torch.no_grad():
        for stored in (*problem.k, problem.v):
            stored[:, :, problem.newest + 1 :] = 1e4
    assert float((problem.engine().double() - expected).abs().max()) <= problem.limit


@pytest.mark.parametrize("mask_kind", ["bool", "float"])
@pytest.mark.parametrize("kind", ALL)
def test_a_fully_masked_query_stays_finite(kind: str, mask_kind: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        real = tokens([0] * 40, [1] * 40)
        problem = Problem(kind, queries=LENGTH, real=real, mask_kind=mask_kind, dtype=dtype, grad=True)
        mixed = problem.engine()
        gradients = torch.autograd.grad(mixed.float().square().sum(), problem.leaves, allow_unused=True)
        assert all(torch.isfinite(found).all() for found in (mixed, *gradients) if found is not None)


@pytest.mark.parametrize("kind", ROUTES)
def test_the_expected_route_is_taken(kind: str) -> None:
    assert Problem(kind).route() == ROUTES[kind]
    assert all((one.prepare or one.attend).__module__.endswith(f".{name}") for name, one in dispatch.ROUTES.items())
