"""``forward`` of a patched base model: run the stages of a call, then the model's own ``forward``.

It is a method of a subclass, and no hook: torch runs hooks for ``base(…)`` alone, and sentence-transformers 6 calls
``base.forward(…)``.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

from torch import nn

from hf_posenc.errors import ForeignPatch
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.forward.positions import KEYWORD, ForwardContext
from hf_posenc.forward.stages import prepare_forward


@cache
def patched_base(cls: type[Any]) -> type[nn.Module]:
    """Subclass of a base model's class with the ``forward`` of this module, and the name and signature of the class."""

    @wraps(cls.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if ATTENTIONS not in self.__dict__:  # another model of the class, which is not patched
            return cls.forward(self, *args, **kwargs)
        keywords = prepare_forward(self, args, kwargs)
        output = cls.forward(self, **keywords)
        check_attended(self, keywords[KEYWORD])
        return output

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        return _blank, (cls,), dict(self.__dict__)

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    members = {"forward": forward, "__reduce_ex__": __reduce_ex__, "posenc_own_base": cls}
    return type(cls.__name__, (cls,), names | members)


def own_base(cls: type[nn.Module]) -> type[nn.Module]:
    """The class inside a class of `patched_base`; any other class itself."""
    return vars(cls).get("posenc_own_base", cls)


def check_attended(base: Any, forward: ForwardContext) -> None:
    """Refuse the output of a forward pass in which no layer asked for its positions.

    Raises:
        ForeignPatch: other modules computed attention, such as those of TransformerLens.
    """
    if forward.memos or (base.training and getattr(base, "layerdrop", 0)):
        return
    if not any("attend" in attention.__dict__ for attention in base.__dict__[ATTENTIONS]):  # checks replace it
        raise ForeignPatch(
            f"No attention of this {type(base).__name__} computed its scheme, because a library such as "
            "TransformerLens replaced all of it. Load the model again, and take one that calls it, such as nnsight."
        )


def _blank(cls: Any) -> nn.Module:
    made = patched_base(cls)
    return made.__new__(made)
