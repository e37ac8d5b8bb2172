"""Rotating channels by position: angles in float64, tables in float32, the rotation in at least float32.

A float32 angle at position 10⁶ is wrong by 1e-2 rad and a bfloat16 one is meaningless; positions are integers and
frequencies Python floats until here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.geometry import Rotation

Table = tuple[Tensor, Tensor]


def table(rotation: Rotation, places: Tensor, ages: Tensor | None = None) -> Table:
    """Cosine and sine of every angle, float32, each ``[batch or 1, 1, position, pairs]``.

    Args:
        rotation: what turns.
        places: ``[batch or 1, position]``, or ``[batch or 1, position, axes]`` where the rotation has axes.
        ages: ``[batch or 1, position]``: pair m is scaled by e^(decay_m age); negative ages shrink.
    """
    exact = torch.float32 if places.device.type == "mps" else torch.float64  # Metal has no float64
    frequencies = torch.as_tensor(rotation.frequencies, dtype=exact, device=places.device)
    turning = places[..., None] if rotation.axes is None else places[..., list(rotation.axes)]
    angles = (turning.to(exact) * frequencies)[:, None]
    if ages is None or not rotation.decay:
        return angles.cos().float(), angles.sin().float()
    decay = torch.tensor(rotation.decay, dtype=exact, device=places.device)
    size = (ages.to(exact)[..., None] * decay).exp()[:, None]
    return (angles.cos() * size).float(), (angles.sin() * size).float()


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
