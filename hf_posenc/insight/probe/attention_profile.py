"""Attention profile of a layer: attention weight by query–key distance, averaged over rows.

    mass[h, δ] = mean over rows i of w[h, i, i − δ]          δ = query position − key position

Over all distances the mass sums to 1, less the weight of a learned sink. In a decoder δ ≥ 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Profile:
    """Attention profile of one layer.

    Attributes:
        mass: ``[heads, distance]``, float64; the first column is distance ``first_distance``.
        first_distance: 0 in a decoder, −(length − 1) in an encoder.
        sink: weight on the first tokens, ``[heads]``.
        entropy: mean over rows of −Σ w ln w, ``[heads]``, nats.
    """

    mass: Tensor
    first_distance: int
    sink: Tensor
    entropy: Tensor

    @property
    def distances(self) -> Tensor:
        """Distances of the columns of ``mass``, tokens."""
        return torch.arange(self.first_distance, self.first_distance + self.mass.shape[1])

    @property
    def mean_distance(self) -> Tensor:
        """Mean distance Σ mass · ∣δ∣ / Σ mass, ``[heads]``, tokens."""
        return (self.mass * self.distances.abs()).sum(1) / self.mass.sum(1)

    def at(self, distance: int) -> Tensor:
        """Mass at one distance, ``[heads]``; 0 where there is none."""
        column = distance - self.first_distance
        inside = 0 <= column < self.mass.shape[1]
        return self.mass[:, column] if inside else torch.zeros(len(self.mass), dtype=self.mass.dtype)

    def within(self, first: int, last: int) -> Tensor:
        """Mass at ``first ≤ ∣δ∣ ≤ last``, ``[heads]``."""
        far = self.distances.abs()
        return self.mass[:, (far >= first) & (far <= last)].sum(1)

    def strongest(self) -> tuple[Tensor, Tensor]:
        """Return the distance with the most mass, and that mass, ``[heads]`` each."""
        mass, column = self.mass.max(1)
        return column + self.first_distance, mass


class Tally:
    """Accumulate attention rows of a layer, over texts of one length.

    Args:
        heads: heads of the layer.
        length: tokens per text.
        causal: whether keys after the query are masked.
        sinks: tokens at the start that count as attention sink.
    """

    def __init__(self, heads: int, length: int, causal: bool, sinks: int) -> None:
        self.first_distance, self.sinks, self.rows = 0 if causal else 1 - length, sinks, 0
        self.mass = torch.zeros(heads, length - self.first_distance, dtype=torch.float64)
        self.sink, self.entropy = torch.zeros(2, heads, dtype=torch.float64)

    def add(self, rows: slice, weights: Tensor) -> None:
        """Add the ``weights [heads, rows, key]`` of a block of rows."""
        exact = weights.double().cpu()
        columns = torch.arange(rows.start, rows.stop)[:, None] - torch.arange(exact.shape[2]) - self.first_distance
        seen = columns >= 0  # in a decoder, keys after the query have no weight
        self.mass.index_add_(1, columns[seen], exact[:, seen])
        self.sink += exact[:, :, : self.sinks].sum((1, 2))
        self.entropy -= torch.xlogy(exact, exact).sum((1, 2))
        self.rows += exact.shape[1]

    def profile(self) -> Profile:
        """Return the mean over all rows so far."""
        return Profile(self.mass / self.rows, self.first_distance, self.sink / self.rows, self.entropy / self.rows)


def edges(length: int) -> list[int]:
    """Return the first distances of doubling bins: 0, 1, 2, 4, 8 … tokens."""
    found = [0, 1]
    while found[-1] * 2 < length:
        found.append(found[-1] * 2)
    return found


def binned(profile: Profile, starts: Sequence[int]) -> Tensor:
    """Sum the mass in bins of ∣δ∣ with the given first distances, ``[heads, bin]``."""
    last = [start - 1 for start in starts[1:]] + [int(profile.distances.abs().max())]
    return torch.stack([profile.within(a, b) for a, b in zip(starts, last, strict=True)], dim=1)
