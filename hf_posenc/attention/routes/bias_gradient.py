"""Backward pass of a trained bias: its gradient is that of the scores, which no kernel returns.

    w = exp(q · k · scale + bias − lse)        d_scores = w (g · v − Σ g · o) = d_bias

It is computed for one head and one block of queries at a time, in reused buffers that stay in the processor's cache.
So it is about as fast as the kernel's own backward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ROWS = 128  # of 64, 128, 256 the fastest
LOWEST_EXPONENT = -80.0  # smaller weights than 2e-35 are set to 0: underflow makes the exponential ten times slower

Fill = Callable[[int, int, slice, slice, Tensor], object]
Take = Callable[[int, int, slice, slice, Tensor], object]


class Gradients:
    """Gradients of one call, gathered block by block.

    Args:
        tensors: query, key, value, output, log-sum-exp and gradient of the output, heads in the second place.
        scale: factor of q · k.
        flipped: whether queries are numbered from the last to the first.
    """

    def __init__(self, tensors: tuple[Tensor, ...], scale: float, *, flipped: bool = False) -> None:
        self.query, self.key, self.value, out, self.lse, self.grad = tensors
        self.scale, self.flipped = scale, flipped
        self.share = (self.grad.float() * out.float()).sum(-1)
        self.d_query = torch.empty_like(self.query)
        self.d_key, self.d_value = (torch.zeros_like(t, dtype=torch.float32) for t in (self.key, self.value))

    def run(self, blocks: list[tuple[slice, slice]], fill: Fill, take: Take) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value.

        Args:
            blocks: queries and their visible keys; every query once.
            fill: of sample, head, rows and keys: writes the bias ``[rows, keys]``, −∞ where masked.
            take: likewise: receives the gradient of that bias, followed by as many columns of zeros as it has rows.
        """
        sizes = [(rows.stop - rows.start, keys.stop - keys.start) for rows, keys in blocks]
        weights = self.lse.new_empty(max(n * m for n, m in sizes))
        scores = self.lse.new_empty(max(n * (m + n) for n, m in sizes))
        groups = self.query.shape[1] // self.key.shape[1]
        for b in range(self.query.shape[0]):
            for h in range(self.query.shape[1]):
                self._head((b, h), (b, h // groups), blocks, fill, take, weights, scores)
        return self.d_query, self.d_key.to(self.key.dtype), self.d_value.to(self.value.dtype)

    def _head(
        self,
        mine: tuple[int, int],
        shared: tuple[int, int],
        blocks: list[tuple[slice, slice]],
        fill: Fill,
        take: Take,
        weights: Tensor,
        scores: Tensor,
    ) -> None:
        key, value = self.key[shared].float().contiguous(), self.value[shared].float().contiguous()
        rows_of = (self.query[mine].float() * self.scale, self.grad[mine].float(), self.lse[mine], self.share[mine])
        query, grad, lse, share = (self._ordered(t).contiguous() for t in rows_of)
        d_query, d_key, d_value = torch.empty_like(query), self.d_key[shared], self.d_value[shared]
        for rows, keys in blocks:
            n, m = rows.stop - rows.start, keys.stop - keys.start
            w, padded = weights[: n * m].view(n, m), scores[: n * (m + n)].view(n, m + n)
            k, v, q, g = key[keys], value[keys], query[rows], grad[rows]
            fill(*mine, rows, keys, w)
            torch.threshold_(w.sub_(lse[rows, None]).addmm_(q, k.T), LOWEST_EXPONENT, -torch.inf).exp_()
            padded[:, m:] = 0
            d_scores = padded[:, :m]
            d_scores.addmm_(g, v.T, beta=0).sub_(share[rows, None]).mul_(w)  # no graph writes into a view by out=
            torch.mm(d_scores, k, out=d_query[rows])
            d_key[keys].addmm_(d_scores.T, q)
            d_value[keys].addmm_(w.T, g)
            take(*mine, rows, keys, padded)
        self.d_query[mine] = self._ordered(d_query.mul_(self.scale)).to(self.query.dtype)

    def _ordered(self, x: Tensor) -> Tensor:
        return x.flip(0) if self.flipped else x
