"""A rotation measured from vectors before and after it is the one that was applied, whatever it is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hf_posenc.patches.general.fit_rotation import NotRotation, fit_rotation

POSITIONS = [0] + [1 << power for power in range(15)]


def rotated(x: Tensor, frequencies: list[float], layout: str, first: int, amplitude: float) -> Tensor:
    """``x [heads, position, head_dim]`` with channels from ``first`` on rotated, pair by pair, as papers write it."""
    out, pairs = x.double().clone(), len(frequencies)
    for m, frequency in enumerate(frequencies):
        one, two = (first + m, first + m + pairs) if layout == "half" else (first + 2 * m, first + 2 * m + 1)
        for row, position in enumerate(POSITIONS):
            cos, sin = math.cos(position * frequency), math.sin(position * frequency)
            a, b = x[:, row, one].double(), x[:, row, two].double()
            out[:, row, one], out[:, row, two] = amplitude * (a * cos - b * sin), amplitude * (a * sin + b * cos)
    return out.to(x.dtype)


@given(
    layout=st.sampled_from(["half", "interleaved"]),
    pairs=st.integers(2, 6),
    first=st.integers(0, 5),
    rest=st.integers(0, 5),
    base=st.floats(100.0, 1e7),
    amplitude=st.sampled_from([1.0, 1.37, 0.5]),
    sign=st.sampled_from([1, -1]),
)
def test_the_rotation_that_was_applied(
    layout: str, pairs: int, first: int, rest: int, base: float, amplitude: float, sign: int
) -> None:
    x = torch.randn(3, len(POSITIONS), first + 2 * pairs + rest, generator=torch.Generator().manual_seed(0))
    frequencies = [sign * base ** (-m / pairs) for m in range(pairs)]
    fit = fit_rotation(x, rotated(x, frequencies, layout, first, amplitude), POSITIONS)
    assert fit is not None
    assert (fit.first, fit.rotation.layout, fit.rotation.dims) == (first, layout, 2 * pairs)
    assert fit.rotation.amplitude == pytest.approx(amplitude, rel=1e-6)
    # Angles are known to 1e-7 of 2π or so, at positions up to 2¹⁴.
    assert fit.rotation.frequencies == pytest.approx(frequencies, rel=1e-6, abs=1e-9)


def test_pairs_at_rest_between_those_that_rotate() -> None:
    """Gemma 4 pairs channels over the whole head, and rotates the first pairs only."""
    x = torch.randn(2, len(POSITIONS), 16)
    fit = fit_rotation(x, rotated(x, [1.0, 0.3, 0, 0, 0, 0, 0, 0], "half", 0, 1.0), POSITIONS)
    assert fit is not None
    assert (fit.first, fit.rotation.dims, fit.rotation.layout) == (0, 16, "half")
    assert fit.rotation.frequencies == pytest.approx([1.0, 0.3, 0, 0, 0, 0, 0, 0], abs=1e-7)


@pytest.mark.parametrize("change", ["added", "weighted", "accelerated"])
def test_what_is_no_rotation(change: str) -> None:
    x = torch.randn(2, len(POSITIONS), 8)
    after = rotated(x, [1.0, 0.3, 0.1, 0.03], "half", 0, 1.0)
    if change == "added":
        after = after + torch.tensor(POSITIONS)[:, None] * 0.01
    elif change == "weighted":  # a norm with weights behind the rotation
        after = after * torch.linspace(0.5, 1.5, 8)
    else:
        turned = rotated(x, [0.9, 0.2, 0.1, 0.03], "half", 0, 1.0)
        after[:, 5:] = turned[:, 5:]
    with pytest.raises(NotRotation):
        fit_rotation(x, after, POSITIONS)
