"""Decoding and chunked prefill: the queries are the last of the keys."""

from __future__ import annotations

import pytest
import torch

from .formula import ALL, Problem

CHUNK_AND_KEYS = [(1, 2), (1, 6), (1, 8), (1, 140), (2, 3), (5, 9), (30, 300), (140, 141), (299, 300)]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_one_new_token(kind: str, kv_heads: int) -> None:
    problem = Problem(kind, queries=1, keys=50, kv_heads=kv_heads)
    assert problem.deviation() <= problem.limit


@pytest.mark.parametrize(("chunk", "keys"), CHUNK_AND_KEYS)
@pytest.mark.parametrize("kind", ALL)
def test_chunk_onto_a_cache(kind: str, chunk: int, keys: int) -> None:
    """transformers gives a bool mask wherever the call is neither a square nor one row."""
    problem = Problem(kind, queries=chunk, keys=keys, mask_kind="bool" if chunk > 1 else "none")
    assert problem.deviation() <= problem.limit


@pytest.mark.parametrize("kind", ALL)
def test_gradients_of_a_chunk(kind: str) -> None:
    """Training with a prefix in the cache."""
    problem = Problem(kind, queries=20, keys=33, mask_kind="bool", grad=True)
    assert max(problem.gradient_deviations()) <= problem.limit


@pytest.mark.parametrize(("queries", "unwritten"), [(1, 9), (1, 39), (8, 20), (8, 1)])
@pytest.mark.parametrize("kind", ALL)
def test_static_cache(kind: str, queries: int, unwritten: int) -> None:
    """Keys behind the newest query are not written yet: the mask hides them, whatever lies there."""
    problem = Problem(kind, queries=queries, keys=48, unwritten=unwritten, mask_kind="bool")
    expected = problem.expected()
    with torch.no_grad():
        for stored in (*problem.k, problem.v):
            stored[:, :, problem.newest + 1 :] = 1e4
    assert float((problem.engine().double() - expected).abs().max()) <= problem.limit


@pytest.mark.parametrize("kind", ALL)
def test_split_prefill_equals_one_prefill(kind: str) -> None:
    """Prefill, chunk, token by token: the rows of one call over everything."""
    whole = Problem(kind, queries=37)
    rows = whole.engine()
    for start, end in [(0, 11), (11, 30), (30, 31), (31, 37), (36, 37)]:
        piece = whole.but(queries=end - start, keys=end, mask_kind="bool" if start and end - start > 1 else "none")
        piece.q, piece.learned = [q[:, :, start:end] for q in whole.q], whole.learned
        piece.k, piece.v = [k[:, :, :end] for k in whole.k], whole.v[:, :, :end]
        torch.testing.assert_close(piece.engine(), rows[:, :, start:end], atol=whole.limit, rtol=0)
