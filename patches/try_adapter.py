"""Refuse an adapter whose patched model does not run, has other shapes, or loses what its layers have to be told."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import AdapterInvalid, HostConfigInvalid, PosEncError, UnsupportedModel, first_line
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.forward.host_calls import CACHE_NAMES
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


def check_keywords(adapter: Adapter, base: Any) -> None:
    """Refuse a stranger's base model whose forward could not be told positions, or a KV cache."""
    if type(adapter).__module__.startswith("hf_posenc."):  # of families whose forward is known
        return
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
            f"A forward pass of this {kind} never calls `attend` of the modules that the adapter {name} patches. "
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
