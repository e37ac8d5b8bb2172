"""Registry of the adapters by model type. Each adapter class is imported when a model of its type is first patched.

Third parties register with the decorator, or with an entry point of the group ``hf_posenc.adapters`` that names their
class.

Strings name the built-in adapters, so `hf-posenc list` and ``import hf_posenc`` do not import transformers. With the
modules of Llama, GPT-2 and BERT that takes 7 s on two cores.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from hf_posenc.core.plugins import has_failed, load_entry_points, plugin_failures
from hf_posenc.errors import NameNotAllowed, WrongKind, shown

if TYPE_CHECKING:
    from hf_posenc.patches.adapter import Adapter

A = TypeVar("A", bound="type[Adapter]")

GROUP = f"{__name__.partition('.')[0]}.adapters"
HERE = __name__.rpartition(".")[0]

_ADAPTERS: dict[str, str | type[Adapter]] = {
    "llama": f"{HERE}.llama:LlamaAdapter",
    "gpt2": f"{HERE}.gpt2:GPT2Adapter",
    "bloom": f"{HERE}.bloom:BloomAdapter",
    "falcon": f"{HERE}.falcon:FalconAdapter",
    "mpt": f"{HERE}.mpt:MptAdapter",
    "t5": f"{HERE}.t5:T5Adapter",
    "mt5": f"{HERE}.t5:MT5Adapter",
    "umt5": f"{HERE}.t5:UMT5Adapter",
    "deberta-v2": f"{HERE}.deberta:DebertaV2Adapter",
    "mpnet": f"{HERE}.mpnet:MPNetAdapter",
}


def register_adapter(model_type: str) -> Callable[[A], A]:
    """Register an `Adapter` subclass for models whose ``config.model_type`` is ``model_type``, and set its ``name``.

    Raises:
        NameNotAllowed: ``model_type`` is not a string, or another adapter has it.
        WrongKind: the decorated object is not an `Adapter` subclass.
        AdapterInvalid: the class lacks a member of the adapter contract, or has an invalid one.
    """
    if not isinstance(model_type, str) or not model_type.strip():
        raise NameNotAllowed(f"An adapter is named by a config.model_type, got {shown(model_type)}. Pass one.")

    def decorate(cls: A) -> A:
        from hf_posenc.patches.adapter import Adapter
        from hf_posenc.patches.validate_adapter import check_class

        if not (inspect.isclass(cls) and issubclass(cls, Adapter)):
            raise WrongKind(
                f"An adapter is a subclass of hf_posenc.extend.Adapter, got {shown(cls)}. Derive it from that."
            )
        owner, path = _ADAPTERS.get(model_type), f"{cls.__module__}:{cls.__qualname__}"
        target = owner if owner is None or isinstance(owner, str) else f"{owner.__module__}:{owner.__qualname__}"
        if target not in (None, path):
            raise NameNotAllowed(
                f"The model type {model_type!r} has the adapter {target}. Register one adapter a type."
            )
        if vars(cls).get("name", model_type) != model_type:
            raise NameNotAllowed(
                f"The adapter {cls.__name__} is named {shown(vars(cls)['name'])} already, and is registered for "
                f"{model_type!r}. Register a subclass of it."
            )
        check_class(cls)
        cls.name = model_type
        _ADAPTERS[model_type] = cls
        return cls

    return decorate


def adapter_class(model_type: str) -> type[Adapter] | None:
    """The adapter registered for a ``config.model_type``, imported if necessary; None if there is none."""
    load_entry_points(GROUP, _accept)
    target = _ADAPTERS.get(model_type)
    if isinstance(target, str):
        module, _, qualname = target.partition(":")
        target = getattr(import_module(module), qualname)
    return target


def adapter_names() -> list[str]:
    """The model types that have an adapter."""
    load_entry_points(GROUP, _accept)
    return sorted(_ADAPTERS)


def adapter_failures() -> str:
    """One sentence about each installed adapter that failed to load, each after a blank; empty if none failed."""
    return plugin_failures(GROUP)


def adapter_has_failed(model_type: str) -> bool:
    """Whether an installed adapter for a model type failed to load."""
    return has_failed(GROUP, model_type)


def adapter_of_config(config: Any) -> type[Adapter] | None:
    """The adapter for the model type of a configuration, or for the nearest base class of the configuration."""
    types = [getattr(config, "model_type", None), *(vars(cls).get("model_type") for cls in type(config).__mro__)]
    adapters = (adapter_class(model_type) for model_type in types if isinstance(model_type, str) and model_type)
    return next((cls for cls in adapters if cls is not None), None)


def _accept(name: str, plugin: object) -> None:
    """Register the `Adapter` subclass of an entry point, unless its own decorator already has."""
    if not inspect.ismodule(plugin) and plugin not in _ADAPTERS.values():
        register_adapter(name)(plugin)  # type: ignore[type-var]  # which register_adapter checks
