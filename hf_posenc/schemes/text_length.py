"""How long the text of every token is, counted from positions alone."""

from __future__ import annotations

import torch
from torch import Tensor


def text_lengths(positions: Tensor) -> Tensor:
    """Tokens of the text that each token belongs to, ``[batch or 1, query]``.

    A row may hold several texts: one ends where the next position is no higher, as in packed documents. Padding, which
    repeats a position, makes texts of its own that nobody reads.
    """
    length = positions.shape[1]
    last = torch.ones_like(positions, dtype=torch.bool)
    last[:, :-1] = positions[:, 1:] <= positions[:, :-1]
    ends = torch.where(last, torch.arange(length, device=positions.device), length)
    end_of_mine = ends.flip(1).cummin(1).values.flip(1)
    return positions.gather(1, end_of_mine) + 1
