"""Set a state of torch for a while: random numbers from a fixed seed, evaluation mode, the default data type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

UNCHANGED = nullcontext()


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


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode, and restore the mode of every submodule."""
    training = [m for m in module.modules() if m.training]
    for m in training:  # and not `eval`, which transformers makes walk the whole model where nothing is to be done
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True


def evaluation_mode_if_live(given: Any) -> AbstractContextManager[None]:
    """`evaluation_mode` of a model; nothing for the name of one."""
    return evaluation_mode(given) if isinstance(given, nn.Module) else nullcontext()


def remove_hooks(
    hooks: MutableMapping[int, Any], ours: Callable[[Any], bool], beside: MutableMapping[int, Any] | None = None
) -> None:
    """Remove hooks by what they are: the handles of a copied module are those of the original."""
    for number in [number for number, hook in hooks.items() if ours(hook)]:
        del hooks[number]
        if beside is not None:
            beside.pop(number, None)


def autocast_of(device: torch.device) -> torch.autocast | None:
    """The autocast that is on for a device, as a context to enter again where it was switched off; None for none."""
    kind = device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # the meta device has none to ask about
        return None
    return torch.autocast(kind, torch.get_autocast_dtype(kind), cache_enabled=torch.is_autocast_cache_enabled())


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
