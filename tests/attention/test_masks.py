"""Padding, packed documents and fully masked rows, with the attention masks of transformers."""

from __future__ import annotations

import pytest
import torch

from .formula import ALL, BOTH_WAYS, Problem, tokens

LENGTH = 40
LEFT = tokens([0] * 11 + [1] * 29, [1] * 40)
RIGHT = tokens([1] * 29 + [0] * 11, [1] * 40)
BOTH = tokens([0] * 3 + [1] * 29 + [0] * 8, [0] * 9 + [1] * 31)
DOCUMENTS = tokens([0] * 13 + [1] * 27, [0] * 5 + [1] * 20 + [2] * 15)
PADDINGS = {"left": LEFT, "right": RIGHT, "both": BOTH}


def deviation_on_real_tokens(problem: Problem) -> float:
    """Rows of padding may hold anything finite: nobody reads them."""
    ours, exact = problem.engine(), problem.expected()
    assert torch.isfinite(ours).all()
    real = problem.real[:, -problem.queries :].bool()[:, None, :, None]
    return float((ours.double() - exact).masked_fill(~real, 0.0).abs().max())


@pytest.mark.parametrize("mask_kind", ["bool", "float"])
@pytest.mark.parametrize("side", PADDINGS)
@pytest.mark.parametrize("kind", ALL)
def test_padding(kind: str, side: str, mask_kind: str) -> None:
    problem = Problem(kind, queries=LENGTH, real=PADDINGS[side], mask_kind=mask_kind)
    assert deviation_on_real_tokens(problem) <= problem.limit


@pytest.mark.parametrize("side", PADDINGS)
@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_padding_of_an_encoder(kind: str, side: str) -> None:
    problem = Problem(kind, queries=LENGTH, real=PADDINGS[side], mask_kind="bool", causal=False)
    assert deviation_on_real_tokens(problem) <= problem.limit


@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_a_mask_with_one_row_serves_all_queries(kind: str) -> None:
    """``[batch, 1, 1, key]``, as callers write it by hand; long enough for a second block of queries."""
    real = tokens([0] * 11 + [1] * 289, [1] * 300)
    problem = Problem(kind, queries=300, real=real, mask_kind="bool", causal=False)
    whole = problem.engine()
    problem.mask = lambda: real[:, None, None, :].bool()  # type: ignore[method-assign]
    torch.testing.assert_close(problem.engine(), whole)


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("kind", ALL)
def test_left_padding_with_a_cache(kind: str, queries: int) -> None:
    problem = Problem(kind, queries=queries, keys=LENGTH, real=LEFT, mask_kind="bool")
    assert deviation_on_real_tokens(problem) <= problem.limit


@pytest.mark.parametrize("kind", ALL)
def test_packed_documents(kind: str) -> None:
    """Each text starts over at position 0 and sees only itself."""
    problem = Problem(kind, queries=LENGTH, document=DOCUMENTS, mask_kind="bool")
    assert problem.deviation() <= problem.limit


@pytest.mark.parametrize("kind", ALL)
def test_gradients_under_a_mask(kind: str) -> None:
    problem = Problem(kind, queries=LENGTH, document=DOCUMENTS, mask_kind="bool", grad=True)
    assert max(problem.gradient_deviations()) <= problem.limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mask_kind", ["bool", "float"])
@pytest.mark.parametrize("kind", ALL)
def test_a_fully_masked_query_stays_finite(kind: str, mask_kind: str, dtype: torch.dtype) -> None:
    problem = Problem(
        kind, queries=LENGTH, real=tokens([0] * 40, [1] * 40), mask_kind=mask_kind, dtype=dtype, grad=True
    )
    mixed = problem.engine()
    gradients = torch.autograd.grad(mixed.float().square().sum(), problem.leaves, allow_unused=True)
    assert torch.isfinite(mixed).all()
    assert all(torch.isfinite(g).all() for g in gradients if g is not None)
