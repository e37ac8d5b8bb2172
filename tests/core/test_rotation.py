"""Rotation against complex numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hf_posenc.core.geometry import Layout, Rotation
from hf_posenc.core.rotation import rotate, rotate_halves_into, rotate_into, table

FREQUENCIES = (1.0, 0.3, 0.01)


def by_complex(x: Tensor, rotation: Rotation, positions: Tensor) -> Tensor:
    """Each pair as one complex number times e^(i ω p), float64."""
    out = x.detach().double().clone()
    n = len(rotation.frequencies)
    for m, frequency in enumerate(rotation.frequencies):
        one, two = (m, m + n) if rotation.layout == "half" else (2 * m, 2 * m + 1)
        angle = positions.double()[:, None, :] * frequency
        rotated = torch.complex(out[..., one], out[..., two]) * torch.exp(1j * angle)
        out[..., one], out[..., two] = rotated.real, rotated.imag
    return out


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("head_dim", [6, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_complex_numbers(layout: Layout, head_dim: int, dtype: torch.dtype) -> None:
    """Per-sample, fractional and large positions; channels behind the rotated ones stay."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, head_dim, generator=draw).to(dtype).transpose(1, 2)
    rotation = Rotation(FREQUENCIES, layout)
    positions = torch.tensor([[0, 1, 2, 3, 100_000], [7, 7, 8, 9, 10]]) / 2
    rotated = rotate(x, rotation, table(rotation, positions))
    assert rotated.dtype == dtype
    limit = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps * float(x.abs().max())
    assert float((rotated.double() - by_complex(x, rotation, positions)).abs().max()) <= limit
    assert torch.equal(rotated[..., 6:], x[..., 6:])


@pytest.mark.parametrize("write", [rotate_into, rotate_halves_into])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("head_dim", [6, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_long_texts(write: Callable[..., None], layout: Layout, head_dim: int, dtype: torch.dtype) -> None:
    """What is written on a CPU and on a GPU, where nothing needs a gradient."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 300, 3, head_dim, generator=draw).to(dtype).transpose(1, 2)
    rotation, positions, out = Rotation(FREQUENCIES, layout), torch.arange(300)[None], torch.empty_like(x)
    with torch.no_grad():
        write(out, x, layout, table(rotation, positions))
    limit = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps * float(x.abs().max())
    assert float((out.double() - by_complex(x, rotation, positions)).abs().max()) <= limit
    assert torch.equal(out[..., 6:], x[..., 6:])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_gradient_is_rotated_back(layout: Layout) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 5, 10, generator=draw, requires_grad=True)
    rotation, positions = Rotation(FREQUENCIES, layout), torch.arange(5)[None]
    weight = torch.randn(x.shape, generator=draw)
    (gradient,) = torch.autograd.grad((rotate(x, rotation, table(rotation, positions)) * weight).sum(), x)
    assert float((gradient.double() - by_complex(weight, rotation, -positions)).abs().max()) <= 1e-6
