"""Refuse an adapter whose patched model does not run, has wrong shapes, or drops inputs of its attention layers."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from numbers import Real
from traceback import extract_tb
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import AdapterInvalid, HostConfigInvalid, PosEncError, UnsupportedModel, first_line, shown
from hf_posenc.forward.current_forward import ATTENTIONS, OWNER
from hf_posenc.forward.host_calls import CACHE_NAMES, cache_argument, cache_name, pop_cache
from hf_posenc.forward.layer import PatchedLayer
from hf_posenc.forward.positions import KEYWORD
from hf_posenc.patches.validate_adapter import refuse

if TYPE_CHECKING:
    from hf_posenc.patches.adapter import Adapter


@contextmanager
def explained_forward(adapter: Adapter, base: nn.Module, *, patched: bool = True) -> Iterator[None]:
    """Turn an exception of an attention layer into an error that names the adapter or the model as its cause."""
    try:
        yield
    except (PosEncError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a kernel, a quantiser or a hook may raise anything
        layer, name = f"attention layer of this {type(base).__name__}", type(adapter).__name__
        if patched:
            scheme = base.__dict__[ATTENTIONS][0].scheme.shown_name
            raise AdapterInvalid(
                f"A patched {layer} cannot be run: {_brief(error)}. Correct scheme {scheme!r}, which is also called "
                f"with ctx.hidden = None, or the forward of the attention classes of {name}; the model was restored."
            ) from error
        dtype: Any = next((weight.dtype for weight in base.parameters()), None)
        raise UnsupportedModel(
            f"An {layer}, whose weights are {dtype}, cannot be run as it is: {_brief(error)}. Patch the model where it "
            f"runs, and move it afterwards; if it runs here, correct base_class, geometry or probe of {name}."
        ) from error


def _brief(error: Exception) -> str:
    frames = extract_tb(error.__traceback__)
    outside_torch = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame.filename] or frames
    last = outside_torch[-1] if outside_torch else None
    where = f" ({os.path.basename(last.filename)}, line {last.lineno})" if last else ""
    return f"{type(error).__name__}: {first_line(error)}{where}"


def check_heads(base: nn.Module, geometry: Geometry) -> None:
    """Project one vector in the first patched layer, and count heads and channels of the result.

    A module keeps the shapes it was built with, but its configuration may have changed since. Weights on the meta
    device are not checked.

    Raises:
        AdapterInvalid: the adapter's projections return wrong shapes.
        HostConfigInvalid: the counts differ from ``geometry``, which was read from the configuration.
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
    projected = (query.shape[0], key.shape[0], query.shape[2])
    first = geometry.of_layer(0)
    stated = (first.heads, first.kv_heads, first.head_dim)
    if projected != stated:
        raise HostConfigInvalid(
            f"The configuration of this {type(base).__name__} says {_described(*stated)}, and its weights have "
            f"{_described(*projected)}. Restore the configuration that the model was built with, or correct the "
            "geometry of the adapter."
        )


def _described(heads: int | None, kv_heads: int | None, channels: int | None) -> str:
    return f"{heads} heads ({kv_heads} of keys) of {channels} channels"


def is_third_party(adapter: Adapter) -> bool:
    """Whether an adapter comes from another package, so its classes and the model's forward need checks."""
    return type(adapter).__module__.partition(".")[0] != __name__.partition(".")[0]  # a bundle renames this package


def check_members(adapter: Adapter, base: nn.Module, geometry: Geometry) -> None:
    """Refuse a third party's patched attention that lacks a required attribute, or has one of the wrong type."""
    if not is_third_party(adapter):
        return
    for one in base.__dict__[ATTENTIONS]:
        kinds: dict[str, Any] = {
            one.score_factor: (Real, Tensor),
            one.dropout_name: (Real, nn.Module),
            "config": PreTrainedConfig,
            "is_causal": bool,
            "host_eager": (FunctionType, BuiltinFunctionType, partial),  # a bound method would get the module twice
        }
        if type(one).live_dropout is not PatchedLayer.live_dropout:
            del kinds[one.dropout_name]
        if geometry.causal:  # the KV cache is indexed by it
            kinds["layer_idx"] = int
        if lacking := [name for name, kind in kinds.items() if not isinstance(getattr(one, name, None), kind)]:
            found = (f"{name} is {shown(getattr(one, name)) if hasattr(one, name) else 'missing'}" for name in lacking)
            happened = f"patches with {type(one).__name__}, whose {' and whose '.join(found)}"
            names = " and ".join(lacking)
            refuse(type(adapter), happened, f"Define {names} (docs/add-model.md), or name what replaces it")
        if one.is_causal is not bool(geometry.causal):
            happened = f"has a geometry with causal = {geometry.causal}, and is_causal of {type(one).__name__} is not"
            refuse(type(adapter), happened, "Correct one of them")


def check_base(adapter: Adapter, base: Any) -> None:
    """Refuse a third party's base model without token embeddings, or whose forward lacks positions or a KV cache."""
    attention, parameters = base.__dict__[ATTENTIONS][0], inspect.signature(base.forward).parameters
    rotates = attention.scheme.geometry.rotary is not None
    lacking = ["position_ids"] if rotates and "position_ids" not in parameters else []
    if attention.is_causal and not parameters.keys() & set(CACHE_NAMES):
        lacking.append("past_key_values")
    if lacking:
        happened = f"is for {type(base).__name__}, whose forward names no {' and no '.join(lacking)}"
        refuse(type(adapter), happened, "Add it to the signature, and pass it to the attention")
    try:
        base.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        happened = f"is for {type(base).__name__}, whose get_input_embeddings finds nothing"
        refuse(type(adapter), happened, "Define that method in it, and return the token embeddings")


class _Reached(Exception):
    """Ends a forward pass at the first call of `attend`."""


def check_forward(adapter: Adapter, base: Any) -> None:
    """Run a patched base model on two tokens up to the first call of `attend`, and check the arguments of that call.

    The keyword with positions, padding and cache state must arrive: a model that drops it would silently ignore
    padding. In a third party's model, padding and a KV cache must arrive too.

    Raises:
        AdapterInvalid: the model does not take the keyword, drops an argument, or never calls `attend`.
    """
    model_name, attentions, device = type(base).__name__, base.__dict__[ATTENTIONS], next(base.parameters()).device
    token = int(getattr(base.config, "pad_token_id", None) == 0)  # models warn of padding without a mask
    call: dict[str, Any] = {"input_ids": torch.tensor([[token, token]], device=device)}
    if is_third_party(adapter):
        causal = attentions[0].is_causal
        call["attention_mask"] = torch.tensor([[0, 1] if causal else [1, 0]], device=device)
        call |= cache_argument(type(base), DynamicCache() if causal and cache_name(type(base)) else None)
    for attention in attentions:
        attention.__dict__["attend"] = partial(_end_at_attend, type(adapter), attention, call)
    try:
        with torch.no_grad():
            base(**call)
    except _Reached:
        pass
    except PosEncError:
        raise
    except Exception as error:  # a model that needs other inputs raises its own error when it is called
        if KEYWORD in str(error):
            refuse_lost_keyword(type(adapter), model_name, str(error).rstrip("."))
    else:
        happened = f"patches modules of a {model_name} whose forward pass never calls their `attend`"
        remedy = "Name the attention classes that it calls in `attention`, and call `attend` in their forward"
        refuse(type(adapter), happened, remedy)
    finally:
        for attention in attentions:
            del attention.__dict__["attend"]
    if is_third_party(adapter):
        check_base(adapter, base)


def refuse_lost_keyword(cls: type[Adapter], model_name: str, reason: str) -> NoReturn:
    """Refuse a base model that does not pass the keyword of a forward pass to its layers."""
    refuse(
        cls,
        f"patches a {model_name} that does not hand down the keyword {KEYWORD}, which holds the positions and the "
        f"padding of a call: {reason}",
        "Declare **kwargs in the forward of the base model and of its layers, pass them on, and to `attend` as host=; "
        "or replace the class that drops them in `swaps`, as patches/bloom.py does",
    )


def _end_at_attend(
    cls: type[Adapter],
    attention: Any,
    call: dict[str, Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    host: dict[str, Any],
    mask: Any,
    hidden: Any = None,
    cache: Any = None,
    **_: Any,
) -> NoReturn:
    """Replacement of `attend`: refuse flawed arguments in a ``call`` of the model, else raise `_Reached`."""
    geometry, model_name = attention.scheme.geometry, type(attention.__dict__[OWNER]).__name__
    if host.get(KEYWORD) is None:
        refuse_lost_keyword(cls, model_name, "its attention does not get it")
    hands = f"patches a {model_name} in which {type(attention).__name__} hands"
    if "attention_mask" in call:  # a third party's adapter
        shapes = [list(x.shape[:3]) for x in (q, k, v)]
        if shapes != [[1, heads, 2] for heads in (geometry.heads, geometry.kv_heads, geometry.kv_heads)]:
            remedy = "Pass [batch, heads or kv_heads, new token, head_dim], nothing repeated"
            refuse(cls, f"{hands} q, k, v {shapes} to `attend`", remedy)
        if not isinstance(hidden, Tensor) or hidden.shape[:-1] != (1, 2):
            remedy = "Pass what it projects, [batch, new token, width], as hidden="
            refuse(cls, f"{hands} no hidden states of two tokens to `attend`", remedy)
        if mask is None:
            refuse(cls, f"{hands} no mask of a padded text to `attend`", "Pass the model's own mask to it, as mask=")
    if not any(name in call for name in CACHE_NAMES):
        raise _Reached
    cache = pop_cache({**host, "cache": cache} if cache is not None else dict(host))
    if cache is None:
        remedy = "Pass it to the attention, and to `attend` as cache="
        refuse(cls, f"{hands} no KV cache in a call that has one to `attend`", remedy)
    if cache.get_seq_length(attention.layer_idx):
        remedy = "Do not update the cache, which `attend` does"
        refuse(cls, f"{hands} a KV cache that holds the new keys to `attend`", remedy)
    raise _Reached
