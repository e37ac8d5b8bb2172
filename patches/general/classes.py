"""Classes made of a model's own class and a mixin, the same one every time, which copies and pickles can make again."""

from __future__ import annotations

from typing import Any

from torch import nn

_MADE: dict[Any, type[nn.Module]] = {}


def above(cls: type[nn.Module], mixin: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``cls`` whose methods are those of ``mixin`` first."""
    return _made(mixin, mixin, cls)


def below(cls: type[nn.Module], mixin: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``cls`` that calls ``mixin`` where ``cls`` calls a class that both derive from."""
    return mixin if cls in mixin.__mro__ else _made(mixin, cls, mixin)


def own_class(cls: type[nn.Module]) -> type[nn.Module]:
    """The model's own class, of a class made here; any other as it is."""
    return getattr(cls, "posenc_own_class", cls)  # a compiler does not follow vars(cls) once a dictionary has changed


def is_made(cls: type[nn.Module]) -> bool:
    """Whether a class was made here."""
    return "posenc_own_class" in cls.__dict__


def _made(mixin: type[nn.Module], *bases: type[nn.Module]) -> type[nn.Module]:
    if bases in _MADE:
        return _MADE[bases]
    own = next(one for one in bases if one is not mixin)
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
    made = (above if first else below)(cls, mixin)
    return made.__new__(made)
