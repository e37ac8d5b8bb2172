"""Rotation against complex numbers; cached cosines and sines are made once, of bounded size, not copied."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hf_posenc.core.geometry import Layout, Rotation
from hf_posenc.core.rotation import AHEAD, MAX_SPANS, CosSinCache, Table, rotate, rotate_into, table

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


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("head_dim", [6, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_long_texts(layout: Layout, head_dim: int, dtype: torch.dtype) -> None:
    """What is written where nothing needs a gradient."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 300, 3, head_dim, generator=draw).to(dtype).transpose(1, 2)
    rotation, positions, out = Rotation(FREQUENCIES, layout), torch.arange(300)[None], torch.empty_like(x)
    with torch.no_grad():
        rotate_into(out, x, layout, table(rotation, positions))
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


class Counted:
    """A table of squares that counts how often it is made."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def __call__(self, positions: Tensor) -> Table:
        self.made.append((int(positions[0, 0]), int(positions[0, -1]) + 1))
        rows = positions[:, None, :, None].double() ** 2
        return rows, -rows


CPU = torch.device("cpu")


def test_decoding_makes_a_table_in_hundreds_of_steps() -> None:
    tables, make = CosSinCache(), Counted()
    for step in range(5, 5 + 2 * AHEAD):
        square, minus = tables.rows("use", step, 1, CPU, make)
        assert square.flatten().tolist() == [step**2]
        assert minus.flatten().tolist() == [-(step**2)]
    assert len(make.made) == 2


def test_tables_are_kept_by_use_and_first_position() -> None:
    tables, make = CosSinCache(), Counted()
    assert tables.rows("one", 0, 4, CPU, make)[0].flatten().tolist() == [0, 1, 4, 9]
    assert tables.rows("one", 1, 2, CPU, make)[0].flatten().tolist() == [1, 4]
    assert tables.rows("one", 7, 1, CPU, make)[0].flatten().tolist() == [49]
    assert tables.rows("two", 3, 1, CPU, lambda p: (-p[:, None, :, None],) * 2)[0].flatten().tolist() == [-3]


def test_uses_that_never_come_back_are_not_kept_for_ever() -> None:
    tables, make = CosSinCache(), Counted()
    for use in range(3 * MAX_SPANS):
        tables.rows(use, 0, 4, CPU, make)
    assert len(make.made) == 3 * MAX_SPANS
    assert len(tables.spans) <= MAX_SPANS


def test_a_table_made_in_inference_mode_can_be_trained_with() -> None:
    tables = CosSinCache()
    with torch.inference_mode():
        tables.rows("use", 0, 3, CPU, Counted())
    made, _ = tables.rows("use", 0, 3, CPU, Counted())
    x = torch.ones(3, requires_grad=True)
    (x * made.flatten()).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 4]
