"""Every kind of terms through the engine, on any call, against dense float64 attention; and controls that it shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from hf_posenc.attention import dispatch
from hf_posenc.attention.routes import band_cuts, dense_blocks, sliding_window, toeplitz_bias
from hf_posenc.core.regions import Band
from hf_posenc.core.terms import Terms, ToeplitzBias

from .formula import ALL, BOTH_WAYS, DOCUMENTS, LEFT, RIGHT, WINDOW, Problem, tokens, two_regions

ROUTES = {
    "key bias": "key_bias", "learned slopes": "key_bias", "toeplitz": "toeplitz_bias", "learned table": "toeplitz_bias",
    "two tables": "toeplitz_bias", "two regions": "regions", "chunks": "regions", "first keys": "regions",
    "split by row": "regions", "sink": "regions", "window": "sliding_window", "rows": "length_rotation",
    "content": "dense_blocks",
}  # fmt: skip
EDGES = sorted({1, 2, dense_blocks.ROWS, dense_blocks.ROWS + 1, toeplitz_bias.ROWS - 1, sliding_window.ROWS + 1})
LENGTH = 40
BOTH = tokens([0] * 3 + [1] * 29 + [0] * 8, [0] * 9 + [1] * 31)
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


@some.composite
def problems(draw: some.DrawFn) -> Problem:
    causal = draw(some.booleans())
    kind = draw(some.sampled_from(ALL if causal else BOTH_WAYS))
    keys = draw(some.integers(1, 40))
    queries = draw(some.integers(1, keys)) if causal else keys
    batch = draw(some.integers(1, 3))
    heads, kv_heads = draw(some.sampled_from([(1, 1), (2, 1), (2, 2), (6, 2), (4, 4)]))
    padded = draw(some.booleans())
    real = None
    if padded:
        pads = draw(some.lists(some.integers(0, keys - 1), min_size=batch, max_size=batch))
        real = (torch.arange(keys)[None] >= torch.tensor(pads)[:, None]).long()
        if draw(some.booleans()):
            real = real.flip(1)
    plain = not padded and queries in (1, keys)
    mask_kind = "none" if plain else draw(some.sampled_from(["bool", "float"]))
    return Problem(
        kind, queries, keys, batch, heads, kv_heads, draw(some.sampled_from([2, 6, 8])), causal, real,
        mask_kind=mask_kind, seed=draw(some.integers(0, 2**16)), grad=draw(some.booleans()),
    )  # fmt: skip


@settings(max_examples=120, deadline=None, derandomize=True)  # a failure must be everybody's
@given(problems())
def test_engine_is_the_formula(problem: Problem) -> None:
    assert problem.deviation() <= problem.limit


LARGE = 1e-2  # a thousand times what the comparisons allow


def with_terms(problem: Problem, terms: Terms) -> Problem:
    """The same problem, but the engine is given other terms than the formula."""
    problem.position = replace(problem.position, terms=lambda ctx, learned: terms)
    return problem


def test_detached_table() -> None:
    problem = Problem("learned table", grad=True)
    detached = problem.learned.detach()
    with_terms(problem, Terms(bias=(ToeplitzBias(lambda d: detached[:, d.clamp(-9, 9) + 9]),), logit_scale=0.8))
    assert problem.deviation() <= 1e-5
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        problem.gradient_deviations()


def test_regions_overlapping_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("two regions")
    assert problem.deviation() <= 1e-5
    along_diagonal = band_cuts.along_diagonal
    wider = lambda number, band, *rest: along_diagonal(number, Band(0, WINDOW + 1), *rest)  # noqa: E731
    monkeypatch.setattr(band_cuts, "along_diagonal", wider)
    assert problem.deviation() > LARGE


def test_boundary_off_by_one() -> None:
    problem = Problem("two regions")
    shifted = Terms(regions=two_regions(WINDOW + 1), logit_scale=1.1)
    assert with_terms(problem, shifted).deviation() > LARGE


def test_ignored_padding() -> None:
    real = torch.ones(2, 29, dtype=torch.long)
    real[0, :9] = 0
    problem = Problem("key bias", real=real, mask_kind="bool")
    exact = problem.expected()[:1, :, 9:]
    problem.mask = lambda: None  # type: ignore[method-assign]
    assert float((problem.engine()[:1, :, 9:].double() - exact).abs().max()) > LARGE
