"""Adapters by model type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from hf_posenc.core.plugins import load_entry_points
from hf_posenc.errors import (
    NameNotAllowed,
    WrongKind,
    shown,
)

if TYPE_CHECKING:
    from hf_posenc.patches.adapter import Adapter


A = TypeVar("A", bound="type[Adapter]")


_ADAPTERS: dict[str, str | type[Adapter]] = {
    "llama": "hf_posenc.patches.llama:LlamaAdapter",
    "gpt2": "hf_posenc.patches.gpt2:GPT2Adapter",
    "bert": "hf_posenc.patches.bert:BertAdapter",
}


def register_adapter(model_type: str) -> Callable[[A], A]:
    """Register an `Adapter` subclass for models whose ``config.model_type`` is ``model_type``.

    Raises:
        NameNotAllowed: that is no text.
        WrongKind: what is registered is no `Adapter` subclass.
    """

    if not isinstance(model_type, str) or not model_type.strip():
        raise NameNotAllowed(f"An adapter goes by a config.model_type, got {shown(model_type)}. Pass that.")

    def decorate(cls: A) -> A:
        if not (inspect.isclass(cls) and hasattr(cls, "length_dependent")):
            raise WrongKind(
                f"An adapter is a subclass of hf_posenc.patches.adapter.Adapter, got {shown(cls)}. Derive it."
            )
        _ADAPTERS[model_type] = cls
        return cls

    return decorate


def adapter_class(model_type: str) -> type[Adapter] | None:
    """The adapter registered for a ``config.model_type``, or None."""
    load_entry_points("hf_posenc.adapters")
    target = _ADAPTERS.get(model_type)
    if isinstance(target, str):
        module, _, qualname = target.partition(":")
        target = getattr(import_module(module), qualname)
    return target  # type: ignore[return-value]


def adapter_names() -> list[str]:
    """The model types that have an adapter."""
    return sorted(_ADAPTERS)
