"""Products with Hankel matrices through the Fourier transform equal dense ones, in float64 to float32's rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hf_posenc.patches.general.stand_in import LARGE_MATRIX, HankelProducts, is_hankel, random_like


def weight(*shape: int) -> Tensor:
    return random_like(torch.empty(shape, device="meta"), torch.Generator().manual_seed(1))


def gap(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.std())


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
