"""What recipes for training share: they move the positions that a scheme is given, and are no scheme of their own.

A recipe stands on the host's own positions or is composed with others (``"yarn+pose"``). Draws come from torch's
generator, so that ``torch.manual_seed`` repeats them, and are made once a forward pass: one for each row of a batch
whose rows have positions of their own, else one for all of it. Documents packed into one row share theirs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.schemes.base import Scheme


class Recipe(Scheme):
    """Base of the recipes: by default positions are moved in training mode only, and a text is then read at once."""

    replaces_host = False
    recipe = True

    @property
    def unchanged_below(self) -> int:
        """All positions, outside training."""
        return self.geometry.target_length


def longest_text(positions: Tensor) -> Tensor:
    """Tokens of the longest text in each row, ``[batch or 1, 1]``."""
    return positions.amax(-1, keepdim=True) + 1


def whole_between(low: Tensor | int, high: Tensor) -> Tensor:
    """One whole number from ``low`` to ``high``, both included, for every element of ``high``."""
    span = high - low + 1
    return low + torch.minimum((torch.rand(high.shape, device=high.device) * span).long(), span - 1)
