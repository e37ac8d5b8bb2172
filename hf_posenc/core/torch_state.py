"""Context managers for states of torch: random seed, evaluation mode, autocast, default dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

UNCHANGED = nullcontext()


@contextmanager
def fixed_seed(seed: int) -> Iterator[None]:
    """Seed torch's random numbers in the block, and restore the generators afterwards.

    If CUDA was not used yet, only the CPU's generator is seeded. `torch.manual_seed` would queue a call with its stack
    for every kind of accelerator, which takes most of the time of a tiny model's forward pass.
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
    for m in training:  # not `eval`: in transformers it walks the whole model even if nothing changes
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True


def evaluation_mode_if_live(model: Any) -> AbstractContextManager[None]:
    """`evaluation_mode` of a loaded model; an empty context for the name of a model."""
    return evaluation_mode(model) if isinstance(model, nn.Module) else nullcontext()


def remove_hooks(
    hooks: MutableMapping[int, Any], function: Callable[..., Any], beside: MutableMapping[int, Any] | None = None
) -> None:
    """Remove a function and its partials from hooks: handles do not work for the hooks of a copied module."""
    for number in [number for number, hook in hooks.items() if getattr(hook, "func", hook) is function]:
        del hooks[number]
        if beside is not None:
            beside.pop(number, None)


def autocast_of(device: torch.device) -> torch.autocast | None:
    """The active autocast of a device, as a context that switches it on again; None if autocast is off."""
    kind = device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):  # the meta device has none
        return None
    return torch.autocast(kind, torch.get_autocast_dtype(kind), cache_enabled=torch.is_autocast_cache_enabled())


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Run the block with float32 as the default dtype, so that values about positions are not rounded further."""
    before = torch.get_default_dtype()
    if before == torch.float32:  # setting it would affect other threads
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
