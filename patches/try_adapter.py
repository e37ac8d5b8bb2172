"""Refuse an adapter whose patched model does not run, has other shapes, or loses what its layers have to be told."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from numbers import Real
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import AdapterInvalid, HostConfigInvalid, PosEncError, UnsupportedModel, first_line, shown
from hf_posenc.forward.current_forward import ATTENTIONS, OWNER
from hf_posenc.forward.host_calls import CACHE_NAMES, cache_argument, cache_name, take_cache
from hf_posenc.forward.layer import PatchedLayer
from hf_posenc.forward.positions import KEYWORD
from hf_posenc.patches.validate_adapter import refuse

if TYPE_CHECKING:
    from hf_posenc.patches.adapter import Adapter


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
    own = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame.filename] or frames
    where = f" ({os.path.basename(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {first_line(error)}{where}"


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


def of_a_stranger(adapter: Adapter) -> bool:
    """Whether an adapter is not of this package, so that neither its classes nor the model's forward are known."""
    return type(adapter).__module__.partition(".")[0] != __name__.partition(".")[0]  # which a bundle names otherwise


def check_members(adapter: Adapter, base: nn.Module, geometry: Geometry) -> None:
    """Refuse a stranger's patched attention that lacks what is read of it, or holds something else under that name."""
    for one in base.__dict__[ATTENTIONS] if of_a_stranger(adapter) else ():
        numbers: dict[str, Any] = {one.score_factor: (Real, Tensor), one.dropout_name: (Real, nn.Module)}
        if type(one).live_dropout is not PatchedLayer.live_dropout:
            del numbers[one.dropout_name]
        if geometry.causal:  # a KV cache is kept by it
            numbers["layer_idx"] = int
        lacking = [name for name, kinds in numbers.items() if not isinstance(getattr(one, name, None), kinds)]
        lacking += [] if callable(getattr(one, "host_eager", None)) else ["host_eager"]
        for name in lacking:
            happened = f"patches with {type(one).__name__}, whose {name} is {shown(getattr(one, name, 'missing'))}"
            refuse(
                type(adapter), happened, f"Define {name} (docs/add-model.md), or say in the class what stands for it"
            )
        if one.is_causal is not bool(geometry.causal):
            happened = f"has a geometry with causal = {geometry.causal}, and is_causal of {type(one).__name__} is not"
            refuse(type(adapter), happened, "Correct one of them")


def check_base(adapter: Adapter, base: Any) -> None:
    """Refuse a stranger's base model that hides its embeddings, or whose forward takes no positions or no KV cache."""
    attention, taken = base.__dict__[ATTENTIONS][0], inspect.signature(base.forward).parameters
    lacking = ["position_ids"] if attention.scheme.geometry.rotary is not None and "position_ids" not in taken else []
    if attention.is_causal and not taken.keys() & set(CACHE_NAMES):
        lacking.append("past_key_values")
    if lacking:
        refuse(
            type(adapter),
            f"is for {type(base).__name__}, whose forward names no {' and no '.join(lacking)}",
            "Add it to the signature, and hand it on to the attention",
        )
    try:
        base.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        happened = f"is for {type(base).__name__}, whose get_input_embeddings finds nothing"
        refuse(type(adapter), happened, "Define that method in it, and return the token embeddings")


class _Reached(Exception):
    """The first attention module has come to `attend`; ends the forward pass. Holds what is wrong with that, if any."""


def check_forward(adapter: Adapter, base: Any) -> None:
    """Run a patched base model on two tokens, up to `attend` of its first attention module, which has to get a keyword.

    It holds positions, padding and the state of the cache. A model that drops it would compute on, without padding. A
    stranger's model reads padding and a KV cache as well, which have to arrive.

    Raises:
        AdapterInvalid: it does not take the keyword, drops something on the way, or never comes to `attend`.
    """
    kind, attentions, device = type(base).__name__, base.__dict__[ATTENTIONS], next(base.parameters()).device
    token = int(getattr(base.config, "pad_token_id", None) == 0)  # models warn of padding without a mask
    call: dict[str, Any] = {"input_ids": torch.tensor([[token, token]], device=device)}
    if of_a_stranger(adapter):
        causal = attentions[0].is_causal
        call["attention_mask"] = torch.tensor([[0, 1] if causal else [1, 0]], device=device)
        call |= cache_argument(type(base), DynamicCache() if causal and cache_name(type(base)) else None)
    for attention in attentions:
        attention.__dict__["attend"] = partial(_stop, attention, call)
    flaw: tuple[str, str] | None = None
    try:
        with torch.no_grad():
            base(**call)
    except _Reached as reached:
        flaw = reached.args[0]
    except PosEncError:
        raise
    except Exception as error:  # it needs more than tokens, or other ones: its own error says so when it is called
        flaw = not_handed_down(kind, str(error).rstrip(".")) if KEYWORD in str(error) else None
    else:
        happened = f"patches modules of a {kind} whose forward pass never calls their `attend`"
        flaw = happened, "Name the attention classes that it calls in `attention`, and call `attend` in their forward"
    finally:
        for attention in attentions:
            del attention.__dict__["attend"]
    if flaw is not None:
        refuse(type(adapter), *flaw)
    if of_a_stranger(adapter):
        check_base(adapter, base)


def not_handed_down(kind: str, why: str) -> tuple[str, str]:
    """What happens, and what to do, where a base model does not hand the keyword of a forward pass to its layers."""
    return (
        f"patches a {kind} that does not hand down the keyword {KEYWORD}, which holds the positions and the padding "
        f"of a call: {why}",
        "Declare **kwargs in the forward of the base model and of its layers, pass them on, and to `attend` as host=; "
        "or replace what drops them in `swaps`, as patches/bloom.py does",
    )


def _stop(
    one: Any,
    call: dict[str, Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    host: dict[str, Any],
    mask: Any,
    cache: Any = None,
    **_: Any,
) -> NoReturn:
    """In the place of `attend`: find what is wrong with what it is given of a call."""
    geometry, kind = one.scheme.geometry, type(one.__dict__[OWNER]).__name__
    stranger, wanted = "attention_mask" in call, any(key in call for key in CACHE_NAMES)
    cache = take_cache({**host, "cache": cache} if cache is not None else dict(host))
    shapes = [list(x.shape[:3]) for x in (q, k, v)]
    if host.get(KEYWORD) is None:
        raise _Reached(not_handed_down(kind, "its attention does not get it"))
    if stranger and shapes != [[1, heads, 2] for heads in (geometry.heads, geometry.kv_heads, geometry.kv_heads)]:
        does, remedy = f"q, k and v {shapes}", "Pass [batch, heads or kv_heads, new token, head_dim], nothing repeated"
    elif stranger and mask is None:
        does, remedy = "no mask of a padded text", "Hand the model's own mask on to it, as mask="
    elif wanted and cache is None:
        does, remedy = "no KV cache in a call that has one", "Hand it on to the attention, and to `attend` as cache="
    elif wanted and cache.get_seq_length(one.layer_idx):
        does, remedy = "a KV cache that holds the new keys", "Do not update the cache, which `attend` does"
    else:
        raise _Reached(None)
    raise _Reached((f"patches a {kind} in which {type(one).__name__} hands {does} to `attend`", remedy))
