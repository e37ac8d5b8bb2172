"""Numerics of observation: a rotation is measured as it was applied; products with Hankel matrices equal dense ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hf_posenc.patches.general.fit_rotation import NotRotation, fit_rotation
from hf_posenc.patches.general.stand_in import LARGE_MATRIX, HankelProducts, is_hankel, random_like

from ...families.tiny import gap

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
    fit, channel = fit_rotation(x, rotated(x, frequencies, layout, first, amplitude), POSITIONS)
    assert fit is not None
    assert (channel, fit.layout, fit.dims) == (first, layout, 2 * pairs)
    assert fit.amplitude == pytest.approx(amplitude, rel=1e-6)
    # Angles are known to 1e-7 of 2π or so, at positions up to 2¹⁴.
    assert fit.frequencies == pytest.approx(frequencies, rel=1e-6, abs=1e-9)


def test_pairs_at_rest_between_those_that_rotate() -> None:
    """Gemma 4 pairs channels over the whole head, and rotates the first pairs only."""
    x = torch.randn(2, len(POSITIONS), 16)
    fit, channel = fit_rotation(x, rotated(x, [1.0, 0.3, 0, 0, 0, 0, 0, 0], "half", 0, 1.0), POSITIONS)
    assert fit is not None
    assert (channel, fit.dims, fit.layout) == (0, 16, "half")
    assert fit.frequencies == pytest.approx([1.0, 0.3, 0, 0, 0, 0, 0, 0], abs=1e-7)


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


def weight(*shape: int) -> Tensor:
    return random_like(torch.empty(shape, device="meta"), torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", [(1024, 512), (512, 1000), (2048, 129)])
def test_linear_layers(shape: tuple[int, int]) -> None:
    matrix, bias, x = weight(*shape), torch.randn(shape[0]), torch.randn(2, 5, shape[1])
    assert is_hankel(matrix) == (matrix.numel() >= LARGE_MATRIX)
    wanted = x.double() @ matrix.double().T
    with torch.no_grad(), HankelProducts():
        assert gap(nn.functional.linear(x, matrix), wanted) < 1e-5
        assert gap(nn.functional.linear(x, matrix, bias), wanted + bias) < 1e-5
        assert gap(x @ matrix.T, wanted) < 1e-5
        assert gap((matrix @ x[0].T).T, wanted[0]) < 1e-5
        assert nn.functional.linear(x[:0], matrix, bias).shape == (0, 5, shape[0])  # an expert that no token chose


def test_batches_of_matrices() -> None:
    """As experts are stored: every one is a part of the same numbers."""
    matrices, x = weight(3, 600, 700), torch.randn(3, 4, 600)
    wanted, slices = torch.bmm(x.double(), matrices.double()), [x[n] @ matrices[n, :, 50:] for n in range(3)]
    with torch.no_grad(), HankelProducts():
        assert gap(torch.bmm(x, matrices), wanted) < 1e-5
        for number in range(3):  # a view into the middle of the numbers
            assert gap(x[number] @ matrices[number, :, 50:], slices[number].double()) < 1e-5
