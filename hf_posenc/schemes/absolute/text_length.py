"""Sequence length of every token, computed from positions alone."""

from __future__ import annotations

import torch
from torch import Tensor


def text_lengths(positions: Tensor) -> Tensor:
    """Length of the sequence that each token belongs to, ``[batch or 1, query]``.

    A batch row may hold several packed sequences: a sequence ends where the next position is not higher. Padding
    repeats a position and so forms its own sequences, whose lengths are not used.
    """
    length = positions.shape[1]
    indices = torch.arange(length, device=positions.device)
    # Rolled, not sliced: a graph for any length would specialise on the shorter slice.
    last = (positions.roll(-1, 1) <= positions) | (indices == length - 1)
    ends = torch.where(last, indices, length)
    end_of_mine = ends.flip(1).cummin(1)[0].flip(1)  # an exported trace returns a tuple without names
    return positions.gather(1, end_of_mine) + 1
