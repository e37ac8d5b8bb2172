"""Where the heads of a layer look: how much of a row's weight lies at each distance, on average over rows.

    mass[h, δ] = mean over rows i of w[h, i, i − δ]          δ = place of the query − place of the key

Over all distances it adds up to 1, less what a learned sink takes. In a decoder δ ≥ 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Profile:
    """One layer.

    Attributes:
        mass: ``[heads, distance]``, float64; the first distance is ``nearest``.
        nearest: 0, or −(length − 1) where both sides are seen.
        sink: weight on the first tokens, ``[heads]``.
        entropy: mean over rows of −Σ w ln w, ``[heads]``, nats.
    """

    mass: Tensor
    nearest: int
    sink: Tensor
    entropy: Tensor

    @property
    def distances(self) -> Tensor:
        """Of the columns of ``mass``."""
        return torch.arange(self.nearest, self.nearest + self.mass.shape[1])

    @property
    def mean_distance(self) -> Tensor:
        """Σ mass · ∣δ∣ over Σ mass, ``[heads]``, tokens."""
        return (self.mass * self.distances.abs()).sum(1) / self.mass.sum(1)

    def at(self, distance: int) -> Tensor:
        """Mass at one distance, ``[heads]``; 0 where there is none."""
        column = distance - self.nearest
        inside = 0 <= column < self.mass.shape[1]
        return self.mass[:, column] if inside else torch.zeros(len(self.mass), dtype=self.mass.dtype)

    def within(self, first: int, last: int) -> Tensor:
        """Mass at ``first ≤ ∣δ∣ ≤ last``, ``[heads]``."""
        far = self.distances.abs()
        return self.mass[:, (far >= first) & (far <= last)].sum(1)

    def strongest(self) -> tuple[Tensor, Tensor]:
        """The distance with the most mass, and that mass, ``[heads]`` each."""
        mass, column = self.mass.max(1)
        return column + self.nearest, mass


class Tally:
    """Adds up the rows of a layer of ``heads`` heads, in texts of one length."""

    def __init__(self, heads: int, length: int, causal: bool, sinks: int) -> None:
        self.nearest, self.sinks, self.rows = 0 if causal else 1 - length, sinks, 0
        self.mass = torch.zeros(heads, length - self.nearest, dtype=torch.float64)
        self.sink, self.entropy = torch.zeros(2, heads, dtype=torch.float64)

    def add(self, rows: slice, weights: Tensor) -> None:
        """Add ``weights [heads, rows, key]`` of some rows."""
        exact = weights.double().cpu()
        columns = torch.arange(rows.start, rows.stop)[:, None] - torch.arange(exact.shape[2]) - self.nearest
        seen = columns >= 0  # ahead of a decoder's row there is nothing
        self.mass.index_add_(1, columns[seen], exact[:, seen])
        self.sink += exact[:, :, : self.sinks].sum((1, 2))
        self.entropy -= torch.xlogy(exact, exact).sum((1, 2))
        self.rows += exact.shape[1]

    def profile(self) -> Profile:
        """The mean over all rows so far."""
        return Profile(self.mass / self.rows, self.nearest, self.sink / self.rows, self.entropy / self.rows)


def edges(length: int) -> list[int]:
    """Beginnings of bins of distances that double: 0, 1, 2, 4, 8 …"""
    found = [0, 1]
    while found[-1] * 2 < length:
        found.append(found[-1] * 2)
    return found


def binned(profile: Profile, starts: Sequence[int]) -> Tensor:
    """Mass in bins of ∣δ∣ that begin at ``starts`` and end before the next, ``[heads, bin]``."""
    last = [start - 1 for start in starts[1:]] + [int(profile.distances.abs().max())]
    return torch.stack([profile.within(a, b) for a, b in zip(starts, last, strict=True)], dim=1)
