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
    places = torch.arange(length, device=positions.device)
    # Rolled, not cut: a graph for any length would take the one place less for a case of its own.
    last = (positions.roll(-1, 1) <= positions) | (places == length - 1)
    ends = torch.where(last, places, length)
    end_of_mine = ends.flip(1).cummin(1).values.flip(1)
    return positions.gather(1, end_of_mine) + 1
