"""Random numbers from a fixed seed, without a trace in the caller's random state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Seed torch's random numbers inside the context; on exit the generators are as they were.

    Where CUDA was not used yet, only the CPU's generator is seeded: `torch.manual_seed` would keep a record of the
    call, with its stack, for every kind of accelerator, which takes most of the time of a forward pass of a tiny model.
    """
    if torch.cuda.is_initialized():
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            yield
    else:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
