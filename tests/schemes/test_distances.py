"""Evaluating a bias once per distance instead of once per pair: equal values and gradients, no more work."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hf_posenc.schemes.bias.distances import per_distance


@pytest.mark.parametrize("low", [0, -7])
def test_evaluating_each_distance_once_equals_each_pair(low: int) -> None:
    weight = torch.randn(3, requires_grad=True)

    def function(distance: Tensor) -> Tensor:
        calls.append(distance.numel())
        return weight[:, None] * (distance * 0.3).sin()

    calls: list[int] = []
    distance = torch.randint(low, 40, (2, 30, 50), generator=torch.Generator().manual_seed(0))
    grid = per_distance(function, distance)
    assert calls[0] <= 47  # and not 3000
    direct = function(distance.flatten()).unflatten(-1, distance.shape)
    assert torch.allclose(grid, direct)
    steer = torch.randn_like(grid)
    ours, theirs = (torch.autograd.grad((y * steer).sum(), weight)[0] for y in (grid, direct))
    assert torch.allclose(ours, theirs, rtol=1e-4)


def test_far_apart_pairs_cost_no_range() -> None:
    """Two distances a billion apart: not a billion evaluations."""
    sizes: list[int] = []

    def function(distance: Tensor) -> Tensor:
        sizes.append(distance.numel())
        return distance[None].float()

    assert per_distance(function, torch.tensor([[0, 10**9]])).tolist() == [[[0.0, 1e9]]]
    assert sizes == [2]
