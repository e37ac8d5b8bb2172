"""Dropout of attention weights equals the formula with the same dropout mask."""

from __future__ import annotations

import pytest
import torch

from .formula import ALL, Problem

LENGTH, RATE = 33, 0.3


def drawn(problem: Problem, seed: int) -> torch.Tensor:
    """The factor each weight was given, read off with identity values: 0 or 1 / (1 − rate), 1 where nothing is seen."""
    probe = problem.but(kv_heads=problem.heads, head_dim=problem.head_dim, grad=False)
    probe.q, probe.learned = [q.detach() for q in problem.q], problem.learned
    probe.k = [k.detach().repeat_interleave(problem.heads // problem.kv_heads, 1) for k in problem.k]
    probe.v = torch.eye(LENGTH).expand(problem.batch, problem.heads, LENGTH, LENGTH)
    torch.manual_seed(seed)
    dropped = probe.engine()
    probe.dropout = 0.0
    whole = probe.engine()
    return torch.where(whole > 0, dropped / whole, 1.0).detach().double()


# The draw is read off with identity values, to which nothing may be added.
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "values"])
def test_formula_under_the_same_draw(kind: str) -> None:
    problem = Problem(kind, queries=LENGTH, dropout=RATE, grad=True)
    kept = drawn(problem, seed=3)
    share = float((kept[kept != 1] == 0).double().mean())
    assert 0.5 * RATE < share < 1.5 * RATE
    exact = [t.detach().double().requires_grad_() for t in problem.leaves]
    expected = problem.expected(kept=kept, leaves=exact)
    torch.manual_seed(3)
    mixed = problem.engine()
    torch.testing.assert_close(mixed.double(), expected, atol=2e-5, rtol=0)  # 1 / (1 − rate) on top of 1e-5
    ours = torch.autograd.grad(mixed.square().sum(), problem.leaves)
    theirs = torch.autograd.grad(expected.square().sum(), exact)
    for one, other in zip(ours, theirs, strict=True):
        assert float((one.double() - other).abs().max() / other.abs().max()) <= 2e-5
