"""What a scheme keeps between forward passes: answers that follow from its options, and tables of cosines and sines."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from torch import nn

from hf_posenc.core.rotation import CosSinCache
from hf_posenc.core.tracing import is_traced

T = TypeVar("T")
KEPT = ("kept_answers", "kept_above")  # attributes of a scheme that are neither copied nor saved with it
ORIGINAL = "original_module"  # of a copy that has its parameters on another device: what it is a copy of


class KeepsAnswers(nn.Module):
    """A module that computes once what depends on its attributes alone; assigning one of them clears it all."""

    @property
    def original(self) -> KeepsAnswers:
        """This module, or the one of which it is a copy, made for one call on another device."""
        return self.__dict__.get(ORIGINAL, self)

    @property
    def edition(self) -> tuple[int, ...]:
        """Whose weights these are, and how often each was written to: what is computed from them is kept under that."""
        return id(self.original), *(() if is_traced() else writes_to(self))

    @property
    def tables(self) -> CosSinCache:
        """Cosine and sine tables kept between forward passes; neither copied nor saved with the scheme."""
        return self.original.keep("tables", CosSinCache)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in KEPT}

    def __setattr__(self, name: str, value: Any) -> None:
        for kept in (self.__dict__.get("kept_answers"), *self.__dict__.get("kept_above", ())):
            if kept is not None:
                kept.clear()
        super().__setattr__(name, value)

    def keep(self, name: Hashable, make: Callable[[], T]) -> T:
        """``make()``, which depends on the options alone: computed once, and again after an attribute was assigned.

        An attribute of a part counts as one of its composition. Lists and dictionaries changed in place go unnoticed.
        """
        if is_traced():  # a graph has the value itself
            return make()
        kept = self.__dict__.get("kept_answers")
        if kept is None:
            kept = self._memo()
        if name in kept:
            return kept[name]
        made = make()
        kept[name] = made
        return made

    def _memo(self) -> dict[Hashable, Any]:
        """An empty memo."""
        memo: dict[Hashable, Any] = self.__dict__.setdefault("kept_answers", {})
        return memo


def writes_to(module: nn.Module) -> list[int]:
    """How often each weight of a module was written to; 0 where torch does not count it."""
    weights = [weight for weight in module._parameters.values() if weight is not None]
    counts = [0 if weight.is_inference() else weight._version for weight in weights]
    for child in module._modules.values():  # `parameters` takes 50 calls, at every layer of a decoded token
        counts += [] if child is None else writes_to(child)
    return counts
