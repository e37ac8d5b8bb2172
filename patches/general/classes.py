"""Combine a model's own class with a mixin. Equal pairs give the same class, and copies and pickles rebuild it."""

from __future__ import annotations

from typing import Any

from torch import nn

_MADE: dict[Any, type[nn.Module]] = {}


def above(cls: type[nn.Module], mixin: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``mixin`` and ``cls``, in this order: methods of the mixin come first."""
    return _made(mixin, mixin, cls)


def below(cls: type[nn.Module], mixin: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``cls`` and ``mixin``, in this order: ``super()`` calls in ``cls`` reach the mixin."""
    return mixin if cls in mixin.__mro__ else _made(mixin, cls, mixin)


def own_class(cls: type[nn.Module]) -> type[nn.Module]:
    """The model's own class inside a combined class; any other class itself."""
    return getattr(cls, "posenc_own_class", cls)  # a compiler does not follow vars(cls) once a dictionary has changed


def is_made(cls: type[nn.Module]) -> bool:
    """Whether a class is a combined class of this module."""
    return "posenc_own_class" in cls.__dict__


def _made(mixin: type[nn.Module], *bases: type[nn.Module]) -> type[nn.Module]:
    if bases in _MADE:
        return _MADE[bases]
    own = next(base for base in bases if base is not mixin)
    members = {
        "__module__": __name__,
        "__reduce_ex__": _reduce,
        "posenc_own_class": own,
        "recipe": (bases[0] is mixin, mixin),
    }
    return _MADE.setdefault(bases, type(f"{mixin.prefix}{own.__name__}", bases, members))  # type: ignore[attr-defined]


def _reduce(self: Any, protocol: Any) -> Any:
    first, mixin = type(self).recipe
    return _blank, (first, type(self).posenc_own_class, mixin), dict(self.__dict__)


def _blank(first: bool, cls: type[nn.Module], mixin: type[nn.Module]) -> nn.Module:
    made = above(cls, mixin) if first else below(cls, mixin)
    return made.__new__(made)
