"""Refuse an adapter whose mistakes would give wrong numbers: its class at registration, its return values at each use.

`hf_posenc.patches.try_adapter` checks the model that it has patched.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import AdapterInvalid, first_line, shown
from hf_posenc.forward.attention import PatchedAttention

if TYPE_CHECKING:
    from hf_posenc.patches.adapter import Adapter


PROJECTIONS = ("project_query", "project_key")
COUNTS = ("heads", "kv_heads", "head_dim", "width")
CORRECT = "Correct its geometry, or restore the configuration that the model was built with"


def check_class(cls: type[Adapter]) -> None:
    """Refuse an adapter class that lacks a member, or whose classes do not fit together."""
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        refuse(cls, f"does not define {', '.join(missing)}", "Define every abstract method of Adapter")
    pairs = getattr(cls, "attention", None)
    if not isinstance(pairs, dict) or not pairs:
        refuse(cls, f"has attention = {shown(pairs)}", "Map each attention class of the model to its patched class")
    for old, new in pairs.items():
        bases = [base for base in getattr(new, "__mro__", ()) if base in (PatchedAttention, old)]
        if bases != [PatchedAttention, old]:
            refuse(
                cls,
                f"replaces {shown(old)} by {shown(new)}, which does not derive from PatchedAttention, and then from it",
                "Write class Patched(PatchedAttention, Own) for each class Own in attention",
            )
        if missing := [name for name in PROJECTIONS if getattr(new, name) is getattr(PatchedAttention, name)]:
            happened = f"patches with {new.__name__}, whose {' and '.join(missing)} would come from PatchedAttention"
            refuse(cls, happened, "Define it in the class")
    base: Any = getattr(cls, "base_class", None)
    if not (inspect.isclass(base) and issubclass(base, PreTrainedModel)):
        happened = f"has base_class = {shown(base)}, which is no PreTrainedModel of transformers"
        refuse(cls, happened, "Name the class of the model without a head, such as GPT2Model")


def checked_trained_length(adapter: Adapter, config: Any) -> int:
    """The trained length that an adapter reads from a configuration.

    Raises:
        AdapterInvalid: the length is not a positive whole number.
    """
    with explained_entries(adapter, config):
        length, host_length = adapter.trained_length(config), adapter.host_length(config)
    if not _is_count(length):
        refuse(type(adapter), f"says that trained_length is {shown(length)}", "Return a positive int, in tokens")
    if not _is_count(host_length):
        happened = f"is for {type(config).__name__}, which has max_position_embeddings = {shown(host_length)}"
        refuse(type(adapter), happened, "Correct the configuration")
    return length


@contextmanager
def explained_entries(adapter: Adapter, config: Any) -> Iterator[None]:
    """Name the missing entry if an adapter reads one that the configuration does not have."""
    try:
        yield
    except AttributeError as error:
        if error.obj is not config:
            raise
        name = type(adapter).__name__
        raise AdapterInvalid(
            f"The adapter {name} reads {error.name} of {type(config).__name__}, which has no such entry. Read the "
            f"entry that holds it, in trained_length, host_length or geometry of {name}."
        ) from error


def geometry_of(adapter: Adapter, config: Any, *, trained_length: int, target_length: int) -> Geometry:
    """The geometry that an adapter reads from a configuration.

    Raises:
        AdapterInvalid: the return value is not a `Geometry`, or its numbers are impossible.
    """
    cls = type(adapter)
    with explained_entries(adapter, config):
        geometry = adapter.geometry(config, trained_length=trained_length, target_length=target_length)
    if not isinstance(geometry, Geometry):
        refuse(cls, f"returns {shown(geometry)} as geometry", "Return a Geometry")
    for name in COUNTS:
        if not _is_count(value := getattr(geometry, name)):
            refuse(cls, f"has a geometry with {name} = {shown(value)}", CORRECT)
    if geometry.heads % geometry.kv_heads:
        refuse(cls, f"has a geometry with {geometry.heads} heads and {geometry.kv_heads} kv_heads", CORRECT)
    if (geometry.trained_length, geometry.target_length) != (trained_length, target_length):
        refuse(cls, "has a geometry with other lengths than it was given", "Pass both of them on to Geometry")
    return geometry


@contextmanager
def explained_swaps(adapter: Adapter) -> Iterator[None]:
    """Explain an error in an adapter's `swaps`: a missing attribute, or no pairs of module and class."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        happened = f"fails in swaps ({first_line(error)})"
        refuse(type(adapter), happened, "Yield pairs of a module of the model and its new class")


def probed(adapter: Adapter, base: nn.Module, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
    """An adapter's `probe`, ``[1, token, channels]``.

    Raises:
        AdapterInvalid: ``probe`` returns another type or shape.
    """
    out = adapter.probe(base, hidden, positions, layer)
    if not isinstance(out, Tensor) or out.ndim != 3 or out.shape[:2] != hidden.shape[:2]:
        returned = f"a tensor of shape {list(out.shape)}" if isinstance(out, Tensor) else shown(out)
        patched = any(isinstance(one, PatchedAttention) for one in base.modules())
        remedy = ", and in forward of the patched attention what the model's own returns" if patched else ""
        happened = f"returns {returned} from probe for {hidden.shape[1]} tokens{' once patched' if patched else ''}"
        refuse(type(adapter), happened, f"Return the attention's output, [1, token, channels]{remedy}")
    return out


def refuse(cls: type[Adapter], happened: str, remedy: str) -> NoReturn:
    """Raise the error about an adapter's class."""
    raise AdapterInvalid(f"The adapter {cls.__name__} {happened}. {remedy}.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
