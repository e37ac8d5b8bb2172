"""Sinusoidal codes against RoFormer's table, the shift map, published figures, and exact arithmetic."""

from __future__ import annotations

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

from hf_posenc.schemes.sinusoidal import Sinusoidal

from . import hosts

DISTANCES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
# Normalised inner products at these distances, width 128.
GEOMETRIC = [0.970, 0.897, 0.759, 0.714, 0.620, 0.557, 0.477, 0.333, 0.321]
LINEAR = [0.840, 0.452, -0.184, 0.128, -0.017, 0.031, 0.024, 0.006, 0.011]


def codes(positions: list[int] | range, width: int = 128, **options: object) -> Tensor:
    scheme = Sinusoidal(hosts.geometry(width=width), **options)
    return scheme.embed(torch.tensor([list(positions)]))[0].double()


@pytest.mark.parametrize("width", [1, 2, 6, 7, 64, 129])
def test_equals_roformer(width: int) -> None:
    theirs = RoFormerSinusoidalPositionalEmbedding(500, width).create_weight().double()
    assert (codes(range(500), width, layout="concat") - theirs).abs().max() < 1e-6
    interleaved = [m // 2 if m % 2 == 0 else (width + 1) // 2 + m // 2 for m in range(width)]
    assert (codes(range(500), width) - theirs[:, interleaved]).abs().max() < 1e-6


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5000), st.integers(0, 5000), st.sampled_from(["geometric", "linear"]))
def test_shift_is_a_rotation(position: int, shift: int, schedule: str) -> None:
    """code(p + k) = M_k code(p), M_k of 2 × 2 turns that do not depend on p."""
    scheme = Sinusoidal(hosts.geometry(width=64), schedule=schedule)
    angles = shift * torch.tensor(scheme.frequencies, dtype=torch.float64)
    turns = torch.stack((angles.cos(), angles.sin(), -angles.sin(), angles.cos()), dim=-1).unflatten(-1, (2, 2))
    here, there = codes([position, position + shift], 64, schedule=schedule)
    moved = torch.einsum("mab,mb->ma", turns, here.unflatten(-1, (-1, 2))).flatten()
    assert (moved - there).abs().max() < 1e-6


def test_sines_alone_know_no_distance() -> None:
    """The defect of sin-only codes, in figures: norms grow from 0, and one distance has many products."""
    sines = codes(range(128), kind="sin")
    assert sines.square().sum(-1)[:3].tolist() == pytest.approx([0.0, 3.3, 7.7], abs=0.05)
    assert float(sines[100] @ sines[105] - sines[0] @ sines[5]) == pytest.approx(12, abs=0.5)
    both = codes(range(128))  # control: none of it with both
    assert both.square().sum(-1).tolist() == pytest.approx([64.0] * 128, abs=1e-4)
    assert float(both[100] @ both[105] - both[0] @ both[5]) == pytest.approx(0, abs=1e-4)


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
def test_far_out(position: int) -> None:
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
