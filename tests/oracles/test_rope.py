"""RoPE against its block-diagonal matrix, its complex form, transformers' two layouts, and exact arithmetic."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention, RoFormerSinusoidalPositionalEmbedding

from hf_posenc.core.geometry import Layout, Rotation, geometric
from hf_posenc.core.rotation import cos_sin, rotate, table

from . import models

DIMS = 16


def rotated(x: Tensor, positions: Tensor, layout: Layout, dims: int = DIMS) -> Tensor:
    rotation = Rotation(geometric(10_000.0, dims), layout)
    return rotate(x, rotation, table(rotation, positions))


def vectors(seed: int, length: int = 24) -> Tensor:
    return torch.randn(1, 2, length, DIMS, generator=torch.Generator().manual_seed(seed))


def test_equals_llama_and_roformer() -> None:
    """The half layout is Llama's, the interleaved one RoFormer's."""
    q, k, positions = vectors(3), vectors(4), torch.arange(24)[None]
    config = models.llama().config
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    for ours, theirs in zip((q, k), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert (rotated(ours, positions, "half") - theirs).abs().max() < 1e-5  # their angles are float32
    sinusoidal = RoFormerSinusoidalPositionalEmbedding(24, DIMS)
    sinusoidal.weight.data = sinusoidal.create_weight()
    q2, k2 = RoFormerSelfAttention.apply_rotary_position_embeddings(sinusoidal.weight[None, None], q, k)
    assert (rotated(q, positions, "interleaved") - q2).abs().max() < 1e-6
    assert (rotated(k, positions, "interleaved") - k2).abs().max() < 1e-6


def test_position_zero_and_unrotated_channels_are_unchanged() -> None:
    x = vectors(6)
    assert torch.equal(rotated(x, torch.zeros(1, 24, dtype=torch.long), "half"), x)
    part = rotated(x, torch.arange(24)[None], "half", dims=8)
    assert torch.equal(part[..., 8:], x[..., 8:])
    assert not torch.equal(part[..., :8], x[..., :8])


@pytest.mark.parametrize("position", [10**4, 10**5, 10**6])
def test_angles_far_out(position: int) -> None:
    """Tables to float32's last digits, against 50-digit arithmetic."""
    frequencies = geometric(10_000.0, 64)
    cos, sin = (t.flatten().tolist() for t in cos_sin(Rotation(frequencies), torch.tensor([[position]])))
    with mpmath.workdps(50):
        for w, c, s in zip(frequencies, cos, sin, strict=True):
            assert abs(mpmath.cos(mpmath.mpf(w) * position) - c) < 1e-7
            assert abs(mpmath.sin(mpmath.mpf(w) * position) - s) < 1e-7


def test_float32_angles_are_wrong_far_out() -> None:
    """Control: what the float64 angles are for."""
    w, position = geometric(10_000.0, 64)[1], 10**6
    low = torch.cos(torch.tensor(w, dtype=torch.float32) * position)
    assert abs(float(mpmath.cos(mpmath.mpf(w) * position)) - float(low)) > 1e-3
