"""Random shapes, heads, caches and padding: the engine equals the formula."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from .formula import ALL, BOTH_WAYS, Problem


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
