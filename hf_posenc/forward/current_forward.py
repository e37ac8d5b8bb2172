"""Attributes of a patched base model, and the forward pass that it is in, for modules that no keyword reaches."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_posenc.forward.layer import OWNER as OWNER
from hf_posenc.forward.positions import KEYWORD, ForwardContext

if TYPE_CHECKING:
    from hf_posenc.schemes.base import Scheme

ATTENTIONS = "posenc_attentions"  # of a base model: its patched modules, in the order of the layers
TOKEN_TYPES = "posenc_token_types"  # of a base model: whether its token types come from a buffer that ends

LOOKED_UP = "posenc_looked_up"
"""Of a base model: whether its attention modules look their `ForwardContext` up here."""

NUMBERED_FROM = "posenc_numbered_from"
"""Of a base model with a table: the number it gives to its first token itself; None where it takes no numbers."""

ATTENTION = "posenc_attention"  # of a swapped module: an attention module of its model


def schemes_of_base(base: nn.Module) -> list[Scheme]:
    """The different schemes of a patched base model's layers: one where they share it."""
    shared = base._modules.get("posenc")
    if shared is not None:
        return [shared]  # type: ignore[list-item]
    return list(dict.fromkeys(attention.scheme for attention in base.__dict__[ATTENTIONS]))


class Current(threading.local):
    """By base model, the forward pass that this thread computes; it goes with the pass, which alone keeps it."""

    def __init__(self) -> None:
        self.forwards: weakref.WeakKeyDictionary[nn.Module, weakref.ref[ForwardContext]] = weakref.WeakKeyDictionary()


_CURRENT = Current()


def counts_columns(base: nn.Module) -> bool:
    """Whether a base model numbers the columns of a call itself, padding among them, and takes no other numbers."""
    return base.__dict__.get(NUMBERED_FROM, 0) is None


def announce(base: nn.Module, forward: ForwardContext) -> None:
    """Make a forward pass the current one of its base model."""
    _CURRENT.forwards[base] = weakref.ref(forward)


def current_forward(base: nn.Module) -> ForwardContext | None:
    """The forward pass that a base model is in; None outside of one."""
    reference = _CURRENT.forwards.get(base)
    return None if reference is None else reference()


@contextmanager
def within(base: nn.Module, forward: ForwardContext | None) -> Iterator[None]:
    """Make a forward pass the current one for the block."""
    before = current_forward(base)
    if forward is not None:
        announce(base, forward)
    try:
        yield
    finally:
        if before is not None:
            announce(base, before)


class KeepsForward(nn.Module):
    """Mixin of a model's layer: it can be computed again in a backward pass, where no forward pass is current."""

    prefix = "Kept"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of `nn.Module`, with the `ForwardContext` among the arguments."""
        return super().__call__(*args, **{KEYWORD: current_forward(self._base), **kwargs})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own forward, during which its `ForwardContext` is the current one."""
        with within(self._base, kwargs.pop(KEYWORD, None)):
            return super().forward(*args, **kwargs)

    @property
    def _base(self) -> nn.Module:
        return self.__dict__[ATTENTION].__dict__[OWNER]
