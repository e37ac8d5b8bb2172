"""Equivalent forms of RoPE, for reference, tests and the conversion of weights.

Attention itself uses `hf_posenc.core.rotation.apply`.

    matrix    R(p) = diag(Rot(p ω_0), Rot(p ω_1), …)        Rot(α) = [[cos α, −sin α], [sin α, cos α]]
    complex   z_m = x_a + i x_b for the channels (a, b) of pair m;   z_m ← z_m e^(i p ω_m)

Layouts differ in which channels make a pair: ``half`` has (m, m + n), ``interleaved`` (2m, 2m + 1). Rotation in one
is rotation in the other with permuted channels, and permuting channels of q and k is permuting rows of W_q and W_k.

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
