"""Sinusoidal codes against RoFormer's table, the shift map, published figures, and exact arithmetic."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

from hf_posenc.schemes.absolute.sinusoidal import Sinusoidal

from . import models

DISTANCES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
# Normalised inner products at these distances, width 128.
GEOMETRIC = [0.970, 0.897, 0.759, 0.714, 0.620, 0.557, 0.477, 0.333, 0.321]
LINEAR = [0.840, 0.452, -0.184, 0.128, -0.017, 0.031, 0.024, 0.006, 0.011]


def codes(positions: list[int] | range, width: int = 128, **options: object) -> Tensor:
    scheme = Sinusoidal(models.geometry(width=width), **options)  # type: ignore[arg-type]
    return scheme.embed(torch.tensor([list(positions)]))[0].double()


@pytest.mark.parametrize("width", [1, 2, 6, 7, 64, 129])
def test_equals_roformer(width: int) -> None:
    theirs = RoFormerSinusoidalPositionalEmbedding(500, width).create_weight().double()
    assert (codes(range(500), width, layout="concat") - theirs).abs().max() < 1e-6
    interleaved = [m // 2 if m % 2 == 0 else (width + 1) // 2 + m // 2 for m in range(width)]
    assert (codes(range(500), width) - theirs[:, interleaved]).abs().max() < 1e-6


@pytest.mark.parametrize(("kind", "silent"), [("sin", 1), ("cos", 0)])
def test_half_codes_leave_the_other_half_zero(kind: str, silent: int) -> None:
    both, half = codes(range(50), 64), codes(range(50), 64, kind=kind)
    assert not half[:, silent::2].any()
    assert torch.equal(half[:, 1 - silent :: 2], both[:, 1 - silent :: 2])


@pytest.mark.parametrize(("schedule", "expected"), [("geometric", GEOMETRIC), ("linear", LINEAR)])
def test_schedules(schedule: str, expected: list[float]) -> None:
    code = codes([0, *DISTANCES], schedule=schedule)
    products = (code[1:] @ code[0] / (code[0] @ code[0])).tolist()
    assert products == pytest.approx(expected, abs=6e-4)


def test_base_scale_and_reverse() -> None:
    plain = codes(range(100), 64)
    assert torch.allclose(codes(range(100), 64, scale=0.5) * 2, plain)
    pairs = codes(range(100), 64, reverse=True).unflatten(-1, (-1, 2)).flip(1).flatten(1)
    assert torch.equal(pairs, plain)
    quick = codes([3], 64, base=100.0)[0, 2::2]
    expected = [float(mpmath.sin(3 * mpmath.mpf(100) ** (-mpmath.mpf(2 * m) / 64))) for m in range(1, 32)]
    assert quick.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("position", [10**5, 10**6])
def test_far_positions(position: int) -> None:
    code = codes([position], 64)[0]
    low = torch.tensor(position) * 10_000.0 ** (-torch.arange(0, 64, 2) / 64)  # control: float32 angles
    worst = 0.0
    with mpmath.workdps(40):
        for m in range(32):
            angle = position * mpmath.mpf(10_000) ** (-mpmath.mpf(2 * m) / 64)
            assert abs(mpmath.sin(angle) - float(code[2 * m])) < 1e-7
            assert abs(mpmath.cos(angle) - float(code[2 * m + 1])) < 1e-7
            worst = max(worst, abs(float(mpmath.sin(angle)) - float(low[m].sin())))
    assert worst > 1e-3


@pytest.mark.parametrize("width", [7, 64])
def test_custom_frequencies(width: int) -> None:
    """One's own schedule: the geometric one by hand is equal; a single pair rotates by the given frequency."""
    pairs = (width + 1) // 2
    by_hand = [10_000.0 ** (-2 * m / width) for m in range(pairs)]
    assert torch.equal(codes(range(50), width, schedule="custom", frequencies=by_hand), codes(range(50), width))
    rotating = codes([0, 1, 2, 3], width, schedule="custom", frequencies=[math.pi / 2] * pairs)
    assert rotating[:, 0].tolist() == pytest.approx([0, 1, 0, -1], abs=1e-6)
    assert rotating[:, 1].tolist() == pytest.approx([1, 0, -1, 0], abs=1e-6)
    up = codes([5], width, schedule="custom", frequencies=by_hand, reverse=True)
    down = codes([5], width, schedule="custom", frequencies=by_hand[::-1])
    assert torch.equal(up, down)
