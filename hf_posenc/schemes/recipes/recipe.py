"""Base of training recipes, which change the positions that other schemes receive.

A recipe applies to the model's own positions or is composed with others (``"yarn+pose"``). Draws come from torch's
generator, so that ``torch.manual_seed`` repeats them, and are made once per forward pass: one for each row of a batch
whose rows have their own positions, else one for all of it. Documents packed into one row share theirs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.schemes.base import Scheme


class Recipe(Scheme):
    """Base of the recipes: by default positions change in training mode only, which has no cache."""

    replaces_host = False
    recipe = True

    @property
    def unchanged_below(self) -> int:
        """The target length: outside training nothing changes."""
        return self.geometry.target_length


def longest_text(positions: Tensor) -> Tensor:
    """Length of the longest sequence in each row, ``[batch or 1, 1]``."""
    return positions.amax(-1, keepdim=True) + 1


def whole_between(low: Tensor | int, high: Tensor) -> Tensor:
    """One random integer from ``low`` to ``high``, both included, for every element of ``high``."""
    span = high - low + 1
    return low + torch.minimum((torch.rand(high.shape, device=high.device) * span).long(), span - 1)
