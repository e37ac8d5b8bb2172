"""Memo of a scheme between forward passes: results that depend on its options alone, and cosine and sine tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from torch import nn

from hf_posenc.core.rotation import CosSinCache
from hf_posenc.core.tracing import is_traced

T = TypeVar("T")
MEMOS = ("memo_of_options", "memos_above")  # attributes of a scheme that are neither copied nor saved with it
ORIGINAL = "original_module"  # attribute of a copy on another device: the module that was copied


class Memoizing(nn.Module):
    """A module with a memo of results that depend on its attributes alone; assigning an attribute clears the memo."""

    @property
    def original(self) -> Memoizing:
        """This module; for a copy that was made for one call on another device, the module that was copied."""
        return self.__dict__.get(ORIGINAL, self)

    @property
    def edition(self) -> tuple[int, ...]:
        """Identity of the module and the write counts of its weights: the key of results computed from the weights."""
        return id(self.original), *(() if is_traced() else write_counts(self))

    @property
    def tables(self) -> CosSinCache:
        """Cosine and sine tables kept between forward passes; neither copied nor saved with the scheme."""
        return self.original.memoized("tables", CosSinCache)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in MEMOS}

    def __setattr__(self, name: str, value: Any) -> None:
        for memo in (self.__dict__.get("memo_of_options"), *self.__dict__.get("memos_above", ())):
            if memo is not None:
                memo.clear()
        super().__setattr__(name, value)

    def memoized(self, name: Hashable, make: Callable[[], T]) -> T:
        """Result of ``make()``, which depends on the options alone, from the memo if it is there.

        Assigning an attribute of a part clears its composition's memo, too. Changes of a list or dictionary in place go
        unnoticed.
        """
        if is_traced():  # the graph then holds the result itself
            return make()
        memo = self.__dict__.get("memo_of_options")
        if memo is None:
            memo = self._memo()
        if name not in memo:
            memo[name] = make()
        return memo[name]

    def _memo(self) -> dict[Hashable, Any]:
        """An empty memo."""
        memo: dict[Hashable, Any] = self.__dict__.setdefault("memo_of_options", {})
        return memo


def write_counts(module: nn.Module) -> list[int]:
    """How often each weight of a module was written to; 0 if torch does not count its writes."""
    weights = [weight for weight in module._parameters.values() if weight is not None]
    counts = [0 if weight.is_inference() else weight._version for weight in weights]
    for child in module._modules.values():  # `parameters` takes 50 calls, at every layer of a decoded token
        counts += [] if child is None else write_counts(child)
    return counts
