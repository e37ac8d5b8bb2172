"""Attributes of a patched base model, and its current forward pass, for modules that no keyword reaches."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_posenc.forward.layer import OWNER as OWNER
from hf_posenc.forward.positions import KEYWORD, ForwardContext

if TYPE_CHECKING:
    from hf_posenc.schemes.base import Scheme

ATTENTIONS = "posenc_attentions"  # of a base model: its patched attention modules, in the order of the layers
TOKEN_TYPES = "posenc_token_types"  # of a base model: whether it reads token types from a buffer of limited length

USES_LOOKUP = "posenc_looked_up"
"""Attribute of a base model: whether its attention modules look up their `ForwardContext` in this file."""

FIRST_POSITION_ID = "posenc_numbered_from"
"""Attribute of a base model with a table: the number of its first token; None if it accepts no ``position_ids``."""

ATTENTION = "posenc_attention"  # of a replaced module: an attention module of the same model


def schemes_of_base(base: nn.Module) -> list[Scheme]:
    """The different schemes of a patched base model's layers: a single one if the layers share it."""
    shared = base._modules.get("posenc")
    if shared is not None:
        return [shared]  # type: ignore[list-item]
    return list(dict.fromkeys(attention.scheme for attention in base.__dict__[ATTENTIONS]))


class CurrentForwards(threading.local):
    """The current forward pass of each base model in this thread, as a weak reference.

    The key is the first attention module: `torch.export` calls a stand-in of the base model with the same attributes.
    """

    def __init__(self) -> None:
        self.forwards: weakref.WeakKeyDictionary[nn.Module, weakref.ref[ForwardContext]] = weakref.WeakKeyDictionary()


_CURRENT = CurrentForwards()


def counts_columns(base: nn.Module) -> bool:
    """Whether a base model numbers all columns of a call, padding included, and accepts no ``position_ids``."""
    return base.__dict__.get(FIRST_POSITION_ID, 0) is None


def set_current_forward(base: nn.Module, forward: ForwardContext) -> None:
    """Set the current forward pass of a base model."""
    _CURRENT.forwards[base.__dict__[ATTENTIONS][0]] = weakref.ref(forward)


def current_forward(base: nn.Module) -> ForwardContext | None:
    """The current forward pass of a base model; None outside of a forward pass."""
    reference = _CURRENT.forwards.get(base.__dict__[ATTENTIONS][0])
    return None if reference is None else reference()


class KeepsForward(nn.Module):
    """Mixin for a model's layer, so that gradient checkpointing can recompute it outside of a forward pass."""

    prefix = "Kept"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module with the current `ForwardContext` among the arguments, which a checkpoint stores."""
        return super().__call__(*args, **{KEYWORD: current_forward(self._base), **kwargs})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer's own forward with the `ForwardContext` of the arguments as the current one."""
        before, forward = current_forward(self._base), kwargs.pop(KEYWORD, None)
        if forward is not None:
            set_current_forward(self._base, forward)
        try:
            return super().forward(*args, **kwargs)
        finally:
            if before is not None:
                set_current_forward(self._base, before)

    @property
    def _base(self) -> nn.Module:
        return self.__dict__[ATTENTION].__dict__[OWNER]
