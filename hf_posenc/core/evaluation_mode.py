"""A model in evaluation mode for a while: a caller may be in the middle of training it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn


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
