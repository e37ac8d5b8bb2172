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
    turned, rest = x[..., : rotation.dims].float(), x[..., rotation.dims :]
    if rotation.layout == "half":
        first, second = turned.chunk(2, dim=-1)
        out = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
        out = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    out = out.to(x.dtype)
    return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out
