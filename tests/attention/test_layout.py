"""Queries, keys and values whose channels do not lie side by side in memory, as convolutions leave them."""

from __future__ import annotations

import pytest
import torch

from .formula import ALL, Problem


def channels_apart(x: torch.Tensor, *, grad: bool = False) -> torch.Tensor:
    """The same numbers, channel by channel in memory."""
    return x.detach().mT.contiguous().mT.requires_grad_(grad)


def in_that_layout(problem: Problem) -> Problem:
    problem.q = [channels_apart(x, grad=problem.grad) for x in problem.q]
    problem.k = [channels_apart(x, grad=problem.grad) for x in problem.k]
    problem.v = channels_apart(problem.v, grad=problem.grad)
    return problem


@pytest.mark.parametrize("queries", [1, 40, 300])
@pytest.mark.parametrize("kind", ALL)
def test_outputs(kind: str, queries: int) -> None:
    problem = Problem(
        kind, queries=queries, keys=max(queries, 50), batch=1, mask_kind="bool" if queries == 40 else "none"
    )
    assert in_that_layout(problem).deviation() <= problem.limit


@pytest.mark.parametrize("kind", ALL)
def test_gradients(kind: str) -> None:
    problem = in_that_layout(Problem(kind, queries=60, batch=1, grad=True))
    assert max(problem.gradient_deviations()) <= problem.limit
