"""Rotating channels by position: angles in float64, tables in float32, the rotation in at least float32.

A float32 angle at position 10⁶ is wrong by 1e-2 rad and a bfloat16 one is meaningless; positions are integers and
frequencies Python floats until here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.geometry import Rotation

Table = tuple[Tensor, Tensor]


def table(rotation: Rotation, positions: Tensor) -> Table:
    """Cosine and sine of every angle, float32, each ``[batch or 1, 1, position, pairs]``."""
    exact = torch.float32 if positions.device.type == "mps" else torch.float64  # Metal has no float64
    frequencies = torch.tensor(rotation.frequencies, dtype=exact, device=positions.device)
    angles = (positions.to(exact)[..., None] * frequencies)[:, None]
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, rotation: Rotation, turn: Table) -> Tensor:
    """``x [batch, heads, position, head_dim]`` with its first ``rotation.dims`` channels turned; same dtype."""
    cos, sin = turn
    half, dims = rotation.dims // 2, rotation.dims
    halves = rotation.layout == "half"
    first, second = (x[..., :half], x[..., half:dims]) if halves else (x[..., 0:dims:2], x[..., 1:dims:2])
    # In place on the first product: a third less memory traffic than the difference of two.
    turned = (
        (first * cos).addcmul_(second, sin, value=-1).to(x.dtype),
        (second * cos).addcmul_(first, sin).to(x.dtype),
    )
    out = torch.cat(turned, dim=-1) if halves else torch.stack(turned, dim=-1).flatten(-2)
    return torch.cat((out, x[..., dims:]), dim=-1) if dims < x.shape[-1] else out
