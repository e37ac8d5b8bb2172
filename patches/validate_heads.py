"""Compare the attention heads that an adapter reads from a configuration with those that the weights have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hf_posenc.errors import AdapterInvalid, HostConfigInvalid
from hf_posenc.forward.current_forward import ATTENTIONS

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry


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
