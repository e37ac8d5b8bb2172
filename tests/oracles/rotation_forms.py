"""RoPE as a matrix and as complex numbers, in float64.

    matrix    R(p) = diag(Rot(p ω_0), Rot(p ω_1), …)        Rot(α) = [[cos α, −sin α], [sin α, cos α]]
    complex   z_m = x_a + i x_b for the channels (a, b) of pair m;   z_m ← z_m e^(i p ω_m)

Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.2 and equation 34.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.core.geometry import Layout, Rotation


def pairs(layout: Layout, dims: int) -> Tensor:
    """The channels of each pair, ``[dims / 2, 2]``."""
    channels = torch.arange(dims)
    return channels.view(2, -1).T if layout == "half" else channels.view(-1, 2)


def angles(rotation: Rotation, positions: Tensor) -> Tensor:
    """Angle of every pair, float64, ``[…, pairs]``, at ``positions […]``, or ``[…, axes]`` for a rotation with axes."""
    frequencies = torch.as_tensor(rotation.frequencies, dtype=torch.float64)
    coordinates = positions[..., None] if rotation.axes is None else positions[..., list(rotation.axes)]
    return coordinates.double() * frequencies


def rotation_matrix(rotation: Rotation, position: int | float | Tensor) -> Tensor:
    """R(p), ``[dims, dims]``, float64: block-diagonal, up to the order of the channels in the ``half`` layout.

    Args:
        rotation: its frequencies and layout; channels after its ``dims`` are not part of the matrix.
        position: one position, or the coordinates ``[axes]`` of one token.
    """
    angle = angles(rotation, torch.as_tensor(position))
    first, second = pairs(rotation.layout, rotation.dims).unbind(-1)
    matrix = torch.zeros(rotation.dims, rotation.dims, dtype=torch.float64)
    matrix[first, first] = matrix[second, second] = angle.cos()
    matrix[first, second], matrix[second, first] = -angle.sin(), angle.sin()
    return matrix


def rotate_complex(x: Tensor, rotation: Rotation, positions: Tensor) -> Tensor:
    """``x [..., position, head_dim]`` rotated as complex numbers, float64, at ``positions`` as in `angles`."""
    channels = pairs(rotation.layout, rotation.dims)
    angle = angles(rotation, positions)
    rotated = torch.view_as_complex(x.double()[..., channels].contiguous()) * torch.polar(torch.ones_like(angle), angle)
    out = x.double().clone()
    out[..., channels] = torch.view_as_real(rotated)
    return out
