"""Multiply by the weights of a stand-in as the Hankel matrices they are, in O(n log n) and without making them dense.

A matrix whose strides are both one repeats one vector along its antidiagonals, ``W[i, j] = n[i + j]``. Its product is a
correlation, ``y[j] = Σ_i x[i] n[i + j]``, which the fast Fourier transform computes to the rounding of a dense product.
A dense product would first copy the matrix, which takes minutes for the experts of a large model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

LARGE = 1 << 18  # elements of a matrix; smaller ones are multiplied as they are
aten = torch.ops.aten


class HankelProducts(TorchDispatchMode):
    """Inside the block, products with large Hankel matrices are correlations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As of `TorchDispatchMode`."""
        if func is aten.mm.default or func is aten.bmm.default:
            one, two = args
            if is_hankel(two):
                return correlation(one, two)
            if is_hankel(one):
                return correlation(two.mT, one.mT).mT
        if (func is aten.addmm.default or func is aten.baddbmm.default) and not kwargs and is_hankel(args[2]):
            return args[0] + correlation(*args[1:])
        return func(*args, **(kwargs or {}))


def is_hankel(matrix: Tensor) -> bool:
    """Whether a matrix, or each of a batch, is a large one that repeats a vector along its antidiagonals."""
    rows, columns = matrix.shape[-2:]
    return matrix.stride()[-2:] == (1, 1) and rows * columns >= LARGE and matrix.dtype is torch.float32


def correlation(x: Tensor, matrix: Tensor) -> Tensor:
    """``x @ matrix`` of a Hankel matrix: ``[…, n, rows]`` by ``[…, rows, columns]`` to ``[…, n, columns]``."""
    rows, columns = matrix.shape[-2:]
    if x.numel() == 0:  # of which there is no transform
        return x.new_zeros(*x.shape[:-1], columns)
    size = rows + columns - 1
    repeated = matrix.as_strided((*matrix.shape[:-2], 1, size), (*matrix.stride()[:-2], 0, 1))
    length = 1 << (size - 1).bit_length()  # of the transform
    spectrum = torch.conj_physical(torch.fft.rfft(x, length)) * torch.fft.rfft(repeated, length)
    return torch.fft.irfft(spectrum, length)[..., :columns]
