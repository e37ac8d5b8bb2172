"""Layouts of rotated channels, and the conversion of weights from one to the other.

Layouts differ in which channels make a pair: ``half`` has (m, m + n), ``interleaved`` (2m, 2m + 1). Rotation in one
is rotation in the other with permuted channels, and permuting channels of q and k is permuting rows of W_q and W_k.

Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.core.geometry import Layout


def pairs(layout: Layout, dims: int) -> Tensor:
    """The channels of each pair, ``[dims / 2, 2]``."""
    channels = torch.arange(dims)
    return channels.view(2, -1).T if layout == "half" else channels.view(-1, 2)


def weight_rows(to: Layout, *, heads: int, head_dim: int, rotary_dim: int | None = None) -> Tensor:
    """Order of the rows of W_q (or W_k, or their biases) that converts a checkpoint to another layout of pairs.

    ``weight[weight_rows("half", heads=heads, head_dim=d)]`` has the same scores under `Rotation` ``"half"`` as
    ``weight`` under ``"interleaved"``; ``"interleaved"`` converts back.

    Args:
        to: the layout wanted; the weights are in the other one.
        heads: of this projection: key heads for W_k.
        head_dim: channels of a head.
        rotary_dim: those that are rotated, the first ones; all by default.

    Returns:
        Row numbers ``[heads · head_dim]``.
    """
    dims = head_dim if rotary_dim is None else rotary_dim
    before: Layout = "interleaved" if to == "half" else "half"
    order = torch.arange(head_dim)
    order[pairs(to, dims)] = pairs(before, dims)
    return (torch.arange(heads)[:, None] * head_dim + order).flatten()
