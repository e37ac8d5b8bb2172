"""Muon for many small models at once: all matrices of equal shape are orthogonalised together."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn


class Muon:
    """`torch.optim.Muon` without weight decay, with a learning rate matched to AdamW's, for batches of matrices.

    Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon; the rate: Liu et al. 2025, arXiv:2502.16982, §2.2.
    """

    def __init__(self, matrices: list[nn.Parameter], rate: Tensor) -> None:
        by_shape = itertools.groupby(sorted(matrices, key=lambda m: m.shape), key=lambda m: m.shape)
        self.groups = [list(group) for _, group in by_shape]
        self.momenta = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]
        self.rate = rate

    @torch.no_grad()
    def step(self) -> None:
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            gradient = torch.stack([m.grad for m in group])  # type: ignore[misc]
            momentum.lerp_(gradient, 0.05)
            update = orthogonal(gradient.lerp(momentum, 0.95))
            change = (update * (-0.2 * math.sqrt(max(update.shape[-2:])) * self.rate)).to(torch.float32)
            torch._foreach_add_(group, list(change))


def orthogonal(x: Tensor) -> Tensor:
    """Newton-Schulz iteration towards the nearest orthogonal matrices, ``[matrix, row, column]``, bfloat16."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.bfloat16()
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x
