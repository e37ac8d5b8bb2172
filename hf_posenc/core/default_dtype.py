"""torch's default dtype, which a loader sets to that of a checkpoint while it builds the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Run the block with float32 as the default dtype: what is computed about positions must not be rounded to less."""
    before = torch.get_default_dtype()
    if before == torch.float32:  # other threads are left alone
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
