"""Base of training recipes, which change the positions that other schemes receive.

A recipe applies to the model's own positions, or is composed with other schemes (``"yarn+pose"``). Random numbers come
from torch's generator, so ``torch.manual_seed`` repeats them. They are drawn once per forward pass: for each row if the
rows of the batch have their own positions, else once for the batch. Documents packed into one row share the draw.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.schemes.base import Scheme


class Recipe(Scheme):
    """Base of the recipes. By default, positions change in training mode only, where there is no cache."""

    replaces_host = False
    recipe = True

    @property
    def unchanged_below(self) -> int:
        """The target length, because nothing changes outside training."""
        return self.geometry.target_length


def longest_text(positions: Tensor) -> Tensor:
    """Length of the longest sequence in each row, ``[batch or 1, 1]``."""
    return positions.amax(-1, keepdim=True) + 1


def whole_between(low: Tensor | int, high: Tensor) -> Tensor:
    """One random integer from ``low`` to ``high``, both included, for every element of ``high``."""
    span = high - low + 1
    return low + torch.minimum((torch.rand(high.shape, device=high.device) * span).long(), span - 1)
