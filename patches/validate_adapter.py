"""Refuse an adapter that breaks its contract: its class when it is registered, its answers at the first patch.

Longer than other files, as it is one list: all that an adapter can get wrong, in the order in which it is met.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_posenc.core.geometry import Geometry, HostRotary, Rotation
from hf_posenc.errors import AdapterInvalid, PosEncError, shown
from hf_posenc.forward.attention import PatchedAttention

if TYPE_CHECKING:
    from hf_posenc.patches.adapter import Adapter
    from hf_posenc.schemes.base import Scheme

COUNTS = ("heads", "kv_heads", "head_dim", "width")
WRITTEN = ("forward", "project_query", "project_key", "live_dropout")
"""What each patched attention class must define; `PatchedAttention` only declares it."""
CORRECT = "Correct its geometry, or put back the configuration that the model was built with"

READ = ("scaling", "is_causal", "config", "layer_idx")
"""What `PatchedAttention.attend` reads of the attention module itself."""
ASSIGNED = ("scaling", "config")
"""What is assigned where the module has it: the proof of effect multiplies scores, a patch copies the configuration."""


def check_class(cls: type[Adapter]) -> None:
    """Refuse an adapter class that lacks a member, or has one of the wrong type.

    Raises:
        AdapterInvalid: as it says.
    """
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        _refuse(cls, f"does not define {', '.join(missing)}", "Define every abstract method of Adapter")
    pairs = getattr(cls, "attention", None)
    if not isinstance(pairs, dict) or not pairs:
        _refuse(cls, f"has attention = {shown(pairs)}", "Map each attention class of the model to its patched class")
    for old, new in pairs.items():
        _check_attention(cls, old, new)
    base: Any = getattr(cls, "base_class", None)
    if not _is_module_class(base):
        _refuse(cls, f"has base_class = {shown(base)}", "Name the class of the model without a head, such as GPT2Model")
    if not issubclass(base, PreTrainedModel):
        _refuse(
            cls,
            f"has base_class = {base.__name__}, which is no PreTrainedModel of transformers",
            f"Derive {base.__name__} from transformers.PreTrainedModel, with a configuration and input embeddings",
        )
    kinds = cls.length_dependent
    if not isinstance(kinds, tuple) or not all(isinstance(kind, str) for kind in kinds):
        _refuse(cls, f"has length_dependent = {shown(kinds)}", "Give a tuple of names of rope_type")


def _check_attention(cls: type[Adapter], old: Any, new: Any) -> None:
    if not (_is_module_class(old) and _is_module_class(new)):
        _refuse(cls, f"maps {shown(old)} to {shown(new)} in attention", "Map classes of modules to classes of modules")
    if not issubclass(new, PatchedAttention) or not issubclass(new, old):
        _refuse(
            cls,
            f"replaces {old.__name__} by {new.__name__}, which does not derive from PatchedAttention and from it",
            f"Write class {new.__name__}(PatchedAttention, {old.__name__})",
        )
    own = [
        name for name in WRITTEN if getattr(new, name) in (getattr(PatchedAttention, name), getattr(old, name, None))
    ]
    own += [] if callable(getattr(new, "host_eager", None)) else ["host_eager"]
    if own:
        _refuse(cls, f"has the attention class {new.__name__} without {', '.join(own)}", "Define that in the class")


def checked_trained_length(adapter: Adapter, config: Any) -> int:
    """The trained length that an adapter reads from a configuration.

    Raises:
        AdapterInvalid: it is no positive whole number, or cannot be read.
    """
    with _explained(type(adapter), "trained_length"):
        length = adapter.trained_length(config)
    if not _is_count(length):
        _refuse(type(adapter), f"says that trained_length is {shown(length)}", "Return a positive int, in tokens")
    if not _is_count(own := adapter.host_length(config)):
        _refuse(
            type(adapter),
            f"is for {type(config).__name__}, which has max_position_embeddings = {shown(own)}",
            "Correct the configuration",
        )
    return length


def geometry_of(adapter: Adapter, config: Any, *, trained_length: int, target_length: int) -> Geometry:
    """The geometry that an adapter reads from a configuration.

    Raises:
        AdapterInvalid: it is no `Geometry`, its numbers cannot be, or it cannot be read.
    """
    cls = type(adapter)
    with _explained(cls, "geometry"):
        geometry = adapter.geometry(config, trained_length=trained_length, target_length=target_length)
    if not isinstance(geometry, Geometry):
        _refuse(cls, f"returns {shown(geometry)} as geometry", "Return a Geometry")
    values = {field.name: getattr(geometry, field.name) for field in fields(geometry)}
    wrong = [name for name in COUNTS if not _is_count(values[name])]
    wrong += [] if type(geometry.layers) is int and geometry.layers >= 0 else ["layers"]
    wrong += [] if isinstance(geometry.causal, bool) else ["causal"]
    wrong += [] if geometry.table is None or _is_count(geometry.table) else ["table"]
    wrong += [] if geometry.rotary is None or isinstance(geometry.rotary, HostRotary) else ["rotary"]
    wrong += [] if geometry.slopes is None or _is_list_of_numbers(geometry.slopes, geometry.heads) else ["slopes"]
    if wrong:
        name = wrong[0]
        _refuse(cls, f"has a geometry with {name} = {shown(values[name])}", CORRECT)
    if geometry.heads % geometry.kv_heads:
        _refuse(
            cls,
            f"has a geometry with {geometry.heads} heads and {geometry.kv_heads} kv_heads",
            CORRECT,
        )
    if (geometry.trained_length, geometry.target_length) != (trained_length, target_length):
        _refuse(cls, "has a geometry with other lengths than it was given", "Pass both of them on to Geometry")
    if geometry.rotary is not None:
        _check_rotary(cls, geometry.rotary.rotation, geometry.head_dim)
    return geometry


def _check_rotary(cls: type[Adapter], rotation: Any, head_dim: int) -> None:
    if not isinstance(rotation, Rotation) or not isinstance(rotation.frequencies, tuple):
        _refuse(cls, f"has the rotation {shown(rotation)}", "Return a Rotation with a tuple of frequencies")
    if not 0 < rotation.dims <= head_dim or rotation.layout not in ("half", "interleaved"):
        _refuse(
            cls,
            f"has a rotation of {rotation.dims} of {head_dim} channels in the layout {shown(rotation.layout)}",
            'Give one frequency a pair of channels, and the layout "half" or "interleaved"',
        )


def check_modules(adapter: Adapter, base: nn.Module, scheme: Scheme) -> None:
    """Refuse an adapter that names other things than modules and parameters of the model, or modules without a scale.

    Raises:
        AdapterInvalid: as it says.
    """
    cls = type(adapter)
    with _explained(cls, "attentions, swaps or frozen"):
        attentions, frozen = list(adapter.attentions(base)), list(adapter.frozen(base, scheme))
        swaps = [(module, new) for module, new in adapter.swaps(base, scheme)]
    for attention in attentions[:1]:
        try:
            new = adapter.patched_class(attention)
        except KeyError:
            _refuse(cls, f"lists a {type(attention).__name__} in attentions", "Map its class in attention")
        lacking = [name for name in READ if not hasattr(attention, name) and not hasattr(new, name)]
        if lacking:
            _refuse(
                cls,
                f"patches {type(attention).__name__}, which has no {', '.join(lacking)}",
                f"Define it in {new.__name__}, as a property, or an attribute of the class if all layers have the same",
            )
        fixed = [name for name in ASSIGNED if name in vars(attention) and _is_read_only(new, name)]
        if fixed:
            _refuse(
                cls,
                f"has {fixed[0]} of {new.__name__} as a property without a setter, and a patch assigns it",
                "Give it a setter, or leave the attribute of the model's own class",
            )
    for module, new in swaps:
        if not isinstance(module, nn.Module) or not _is_module_class(new):
            _refuse(cls, f"yields {shown((module, new))} in swaps", "Yield a module of the model and a class for it")
    if not all(isinstance(weight, nn.Parameter) for weight in frozen):
        _refuse(cls, "yields something in frozen that is no parameter", "Yield parameters of the model")


def probed(adapter: Adapter, base: nn.Module, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
    """An adapter's `probe`, ``[1, token, channels]``.

    Raises:
        AdapterInvalid: it returns something else, or makes a mistake that has nothing to do with the model's weights.
    """
    cls = type(adapter)
    with _explained(cls, "probe", (AttributeError, LookupError, NameError, TypeError)):
        out = adapter.probe(base, hidden, positions, layer)
    if not isinstance(out, Tensor) or out.ndim != 3 or out.shape[:2] != hidden.shape[:2]:
        found = f"a tensor of shape {list(out.shape)}" if isinstance(out, Tensor) else shown(out)
        _refuse(
            cls,
            f"returns {found} from probe for {hidden.shape[1]} tokens",
            "Return the attention's output, [1, token, channels]",
        )
    return out


@contextmanager
def explained_forward(adapter: Adapter, base: nn.Module) -> Iterator[None]:
    """Say whose fault it is where a patched layer cannot be run, although it could before the patch.

    Raises:
        AdapterInvalid: it cannot.
    """
    try:
        yield
    except (PosEncError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise AdapterInvalid(
            f"A patched attention layer of this {type(base).__name__} cannot be run: {_brief(error)}. "
            f"Correct the forward of the attention classes of {type(adapter).__name__}, or the scheme; the model was "
            "restored."
        ) from error


@contextmanager
def _explained(cls: type[Adapter], member: str, kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    try:
        yield
    except PosEncError:
        raise
    except kinds as error:
        raise AdapterInvalid(
            f"{member} of the adapter {cls.__name__} cannot be computed for this model: {_brief(error)}. "
            "Correct the adapter, or the scheme where the error is in it, or put back the configuration that the model "
            "was built with."
        ) from error


def _brief(error: Exception) -> str:
    frames = extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0].rstrip(' .:!')[:200]}{where}"


def _refuse(cls: type[Adapter], happened: str, remedy: str) -> None:
    raise AdapterInvalid(f"The adapter {cls.__name__} {happened}. {remedy}.")


def _is_read_only(cls: type, name: str) -> bool:
    found = inspect.getattr_static(cls, name, None)
    return isinstance(found, property) and found.fset is None


def _is_module_class(given: Any) -> bool:
    return inspect.isclass(given) and issubclass(given, nn.Module)


def _is_list_of_numbers(given: Any, length: int) -> bool:
    return isinstance(given, tuple) and len(given) == length and all(isinstance(number, float) for number in given)


def _is_count(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 1
