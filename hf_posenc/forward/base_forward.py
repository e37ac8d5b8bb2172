"""``forward`` of a patched base model: it runs no call without its hooks, and returns no output without its schemes.

torch runs no hooks for calls of ``base.forward(…)`` itself, as sentence-transformers 6 makes them. TransformerLens puts
attention of its own in place of the patched one.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import nn

from hf_posenc.errors import ForeignPatch
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.forward.positions import KEYWORD, ForwardContext

_MADE: dict[type[nn.Module], type[nn.Module]] = {}


def hooked_class(cls: type[nn.Module]) -> type[nn.Module]:
    """A subclass of a base model's class, with its name and signature and the ``forward`` of this module."""
    if cls not in _MADE:
        _MADE.setdefault(cls, _subclass(cls))  # another thread may have made it
    return _MADE[cls]


def unhooked_class(cls: type[nn.Module]) -> type[nn.Module]:
    """The base model's own class inside a hooked class; any other class itself."""
    return next((own for own, made in _MADE.items() if made is cls), cls)


def _subclass(cls: type[Any]) -> type[nn.Module]:
    @wraps(cls.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if ATTENTIONS not in self.__dict__:  # another model of the class, which is not patched
            return cls.forward(self, *args, **kwargs)
        if KEYWORD not in kwargs:
            return self(*args, **kwargs)
        output = cls.forward(self, *args, **kwargs)
        check_attended(self, kwargs[KEYWORD])
        return output

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        return _blank, (cls,), dict(self.__dict__)

    members = {"forward": forward, "__reduce_ex__": __reduce_ex__, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), {**members, "__qualname__": cls.__qualname__})


def check_attended(base: Any, forward: ForwardContext) -> None:
    """Refuse the output of a forward pass in which no layer asked for its positions.

    Raises:
        ForeignPatch: other modules computed attention.
    """
    if forward.memos or (base.training and getattr(base, "layerdrop", 0)):
        return
    if not any("attend" in attention.__dict__ for attention in base.__dict__[ATTENTIONS]):  # checks replace it
        raise ForeignPatch(
            f"No attention of this {type(base).__name__} computed its scheme, because a library such as "
            "TransformerLens replaced all of it. Load the model again, and take one that calls it, such as nnsight."
        )


def _blank(cls: type[nn.Module]) -> nn.Module:
    made = hooked_class(cls)
    return made.__new__(made)
