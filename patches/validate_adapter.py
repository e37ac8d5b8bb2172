"""Refuse an adapter whose mistakes would give wrong numbers: its class at registration, its answers when asked."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.errors import AdapterInvalid, HostConfigInvalid, PosEncError, UnsupportedModel, first_line, shown
from hf_posenc.forward.attention import PatchedAttention
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.forward.host_calls import CACHE_NAMES
from hf_posenc.forward.positions import KEYWORD

if TYPE_CHECKING:
    from hf_posenc.patches.adapter import Adapter


PROJECTIONS = ("project_query", "project_key")
COUNTS = ("heads", "kv_heads", "head_dim", "width")
CORRECT = "Correct its geometry, or put back the configuration that the model was built with"


def check_class(cls: type[Adapter]) -> None:
    """Refuse an adapter class that lacks a member, or whose classes do not fit together."""
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        _refuse(cls, f"does not define {', '.join(missing)}", "Define every abstract method of Adapter")
    pairs = getattr(cls, "attention", None)
    if not isinstance(pairs, dict) or not pairs:
        _refuse(cls, f"has attention = {shown(pairs)}", "Map each attention class of the model to its patched class")
    for old, new in pairs.items():
        if not (inspect.isclass(new) and issubclass(new, PatchedAttention) and issubclass(new, old)):
            _refuse(
                cls,
                f"replaces {shown(old)} by {shown(new)}, which does not derive from PatchedAttention and from it",
                "Write class Patched(PatchedAttention, Own) for each class Own in attention",
            )
        if missing := [name for name in PROJECTIONS if getattr(new, name) is getattr(PatchedAttention, name)]:
            _refuse(
                cls,
                f"patches with {new.__name__}, whose {' and '.join(missing)} would be that of PatchedAttention",
                "Define it, and derive from PatchedAttention first",
            )
    base: Any = getattr(cls, "base_class", None)
    if not (inspect.isclass(base) and issubclass(base, PreTrainedModel)):
        _refuse(
            cls,
            f"has base_class = {shown(base)}, which is no PreTrainedModel of transformers",
            "Name the class of the model without a head, such as GPT2Model",
        )


def checked_trained_length(adapter: Adapter, config: Any) -> int:
    """The trained length that an adapter reads from a configuration.

    Raises:
        AdapterInvalid: it is no positive whole number.
    """
    with explained_entries(adapter, config):
        length, own = adapter.trained_length(config), adapter.host_length(config)
    if not _is_count(length):
        _refuse(type(adapter), f"says that trained_length is {shown(length)}", "Return a positive int, in tokens")
    if not _is_count(own):
        _refuse(
            type(adapter),
            f"is for {type(config).__name__}, which has max_position_embeddings = {shown(own)}",
            "Correct the configuration",
        )
    return length


@contextmanager
def explained_entries(adapter: Adapter, config: Any) -> Iterator[None]:
    """Say which entry of a configuration an adapter asks for in vain."""
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
        AdapterInvalid: it is no `Geometry`, or its numbers cannot be.
    """
    cls = type(adapter)
    with explained_entries(adapter, config):
        geometry = adapter.geometry(config, trained_length=trained_length, target_length=target_length)
    if not isinstance(geometry, Geometry):
        _refuse(cls, f"returns {shown(geometry)} as geometry", "Return a Geometry")
    for name in COUNTS:
        if not _is_count(value := getattr(geometry, name)):
            _refuse(cls, f"has a geometry with {name} = {shown(value)}", CORRECT)
    if geometry.heads % geometry.kv_heads:
        _refuse(cls, f"has a geometry with {geometry.heads} heads and {geometry.kv_heads} kv_heads", CORRECT)
    if (geometry.trained_length, geometry.target_length) != (trained_length, target_length):
        _refuse(cls, "has a geometry with other lengths than it was given", "Pass both of them on to Geometry")
    if geometry.rotary is not None:
        _check_rotary(cls, geometry.rotary.rotation, geometry.head_dim)
    return geometry


def _check_rotary(cls: type[Adapter], rotation: Rotation, head_dim: int) -> None:
    if not 0 < rotation.dims <= head_dim or rotation.layout not in ("half", "interleaved"):
        _refuse(
            cls,
            f"has a rotation of {rotation.dims} of {head_dim} channels in the layout {shown(rotation.layout)}",
            'Give one frequency a pair of channels, and the layout "half" or "interleaved"',
        )


def probed(adapter: Adapter, base: nn.Module, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
    """An adapter's `probe`, ``[1, token, channels]``.

    Raises:
        AdapterInvalid: it returns something else.
    """
    out = adapter.probe(base, hidden, positions, layer)
    if not isinstance(out, Tensor) or out.ndim != 3 or out.shape[:2] != hidden.shape[:2]:
        found = f"a tensor of shape {list(out.shape)}" if isinstance(out, Tensor) else shown(out)
        _refuse(
            type(adapter),
            f"returns {found} from probe for {hidden.shape[1]} tokens",
            "Return the attention's output, [1, token, channels]",
        )
    return out


@contextmanager
def explained_forward(adapter: Adapter, base: nn.Module, *, patched: bool = True) -> Iterator[None]:
    """Say whose fault it is where an attention layer cannot be run."""
    try:
        yield
    except (PosEncError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a kernel, a quantiser or a hook says
        what, name = f"attention layer of this {type(base).__name__}", type(adapter).__name__
        if patched:
            raise AdapterInvalid(
                f"A patched {what} cannot be run: {_brief(error)}. Correct the forward of the attention classes of "
                f"{name}, or the scheme; the model was restored."
            ) from error
        kind: Any = next((weight.dtype for weight in base.parameters()), None)
        raise UnsupportedModel(
            f"An {what}, whose weights are {kind}, cannot be run as it is: {_brief(error)}. Patch the model where it "
            f"runs, and convert or move it afterwards; if it runs here, correct probe of the adapter {name}."
        ) from error


def _brief(error: Exception) -> str:
    frames = extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {first_line(error)}{where}"


def _refuse(cls: type[Adapter], happened: str, remedy: str) -> None:
    raise AdapterInvalid(f"The adapter {cls.__name__} {happened}. {remedy}.")


def _is_count(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 1


def check_heads(base: nn.Module, geometry: Geometry) -> None:
    """Project one vector in the first patched layer, and count heads and channels of the result.

    A module keeps the shapes it was built with, and its configuration may have been changed since. Weights that are not
    here yet (the meta device) are not asked.

    Raises:
        AdapterInvalid: the adapter's projections return another shape than they must.
        HostConfigInvalid: they are not those of ``geometry``, which was read from the configuration.
    """
    attention: Any = base.__dict__[ATTENTIONS][0]
    weight = next(weight for weight in base.parameters() if weight.is_floating_point())
    if weight.is_meta:
        return
    vector = torch.zeros(1, geometry.width, dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        query, key = attention.project_query(vector), attention.project_key(vector)
    shapes = [list(x.shape) for x in (query, key)]
    if any(len(shape) != 3 or shape[1] != 1 for shape in shapes):
        raise AdapterInvalid(
            f"project_query and project_key of {type(attention).__name__} return shapes {shapes} for one token. "
            "Return [heads, token, head_dim] and [kv_heads, token, head_dim]."
        )
    found = (query.shape[0], key.shape[0], query.shape[2])
    first = geometry.of_layer(0)
    stated = (first.heads, first.kv_heads, first.head_dim)
    if found != stated:
        raise HostConfigInvalid(
            f"The configuration of this {type(base).__name__} says {_described(*stated)}, and its weights have "
            f"{_described(*found)}. Put back the configuration that the model was built with, or correct the geometry "
            "of the adapter."
        )


def _described(heads: int | None, kv_heads: int | None, channels: int | None) -> str:
    return f"{heads} heads ({kv_heads} of keys) of {channels} channels"


def check_keywords(adapter: Adapter, base: Any) -> None:
    """Refuse a stranger's base model whose forward could not be told positions, or a KV cache."""
    if type(adapter).__module__.startswith("hf_posenc."):  # of families whose forward is known
        return
    attention, taken = base.__dict__[ATTENTIONS][0], inspect.signature(base.forward).parameters
    lacking = ["position_ids"] if attention.scheme.geometry.rotary is not None and "position_ids" not in taken else []
    if attention.is_causal and not taken.keys() & set(CACHE_NAMES):
        lacking.append("past_key_values")
    if lacking:
        _refuse(
            type(adapter),
            f"is for {type(base).__name__}, whose forward names no {' and no '.join(lacking)}",
            "Add it to the signature, and hand it on to the attention",
        )


class _Reached(Exception):
    """The first attention module has come to `attend`; ends the forward pass."""


def check_forward(adapter: Adapter, base: Any) -> None:
    """Run a patched base model on two tokens, up to `attend` of its first attention module, which has to get a keyword.

    It holds positions, padding and the state of the cache. A model that drops it would compute on, without padding.

    Raises:
        AdapterInvalid: it does not take the keyword, drops it on the way, or never comes to `attend`.
    """
    name, kind, attentions = type(adapter).__name__, type(base).__name__, base.__dict__[ATTENTIONS]
    token = int(getattr(base.config, "pad_token_id", None) == 0)  # models warn of padding without a mask
    for attention in attentions:
        attention.__dict__["attend"] = _stop
    try:
        with torch.no_grad():
            base(input_ids=torch.tensor([[token, token]], device=next(base.parameters()).device))
    except _Reached as reached:
        lost = "" if reached.args[0] else "its attention does not get it"
    except PosEncError:
        raise
    except Exception as error:  # it needs more than tokens, or other ones: its own error says so when it is called
        lost = str(error).rstrip(".") if KEYWORD in str(error) else ""
    else:
        raise AdapterInvalid(
            f"A forward pass of this {kind} never comes to `attend` of the modules that the adapter {name} patches. "
            "Name the attention classes that it calls in `attention`, and call `attend` in their forward."
        )
    finally:
        for attention in attentions:
            del attention.__dict__["attend"]
    if lost:
        raise AdapterInvalid(
            f"The adapter {name} patches a {kind} that does not hand down the keyword {KEYWORD}, which holds the "
            f"positions and the padding of a call: {lost}. Declare **kwargs in the forward of the base model and of "
            "its layers, pass them on, and to `attend` as host=; or replace what drops them in `swaps`, as "
            "patches/bloom.py does."
        )
    check_keywords(adapter, base)


def _stop(*_: Any, host: dict[str, Any], **__: Any) -> NoReturn:
    raise _Reached(host.get(KEYWORD) is not None)
