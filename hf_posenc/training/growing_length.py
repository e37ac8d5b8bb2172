"""Rows that grow during a run: at first each is cut into several short ones, at the end it is whole.

Every step reads the same tokens, and attention over short rows costs less (Jin et al. 2023, "GrowLength",
arXiv:2310.00576).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def parts_at(step: int, *, steps: int, stages: int) -> int:
    """Into how many parts a row is cut at a step, counted from 0: a power of two, halved in every stage, at last 1."""
    return int(2 ** max(0, stages - 1 - step * stages // steps))


def split_rows(inputs: dict[str, Any], parts: int) -> dict[str, Any]:
    """Tensors ``[row, token]`` as ``[row · parts, token / parts]``."""
    return {
        name: value.reshape(value.shape[0] * parts, -1) if isinstance(value, Tensor) and value.ndim == 2 else value
        for name, value in inputs.items()
    }
