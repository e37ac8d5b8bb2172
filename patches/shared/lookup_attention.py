"""Attention modules that no keyword reaches, as their models hand on none: they look their `ForwardContext` up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.bert.modeling_bert import eager_attention_forward

from hf_posenc.errors import InvalidInput
from hf_posenc.forward.attention import PatchedAttention
from hf_posenc.forward.current_forward import OWNER, KeepsForward, current_forward
from hf_posenc.forward.positions import KEYWORD, ForwardContext
from hf_posenc.patches.shared.rotary_host import AddsPositionCode

LAYER = "posenc_layer"  # of a patched module: its number, where its class keeps none


class PlacedAttention(PatchedAttention):
    """Mixin of patched attention modules whose classes may keep no configuration, and no number of their layer."""

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.__dict__.get("config") or self.__dict__[OWNER].config

    @config.setter
    def config(self, value: Any) -> None:
        self.__dict__["config"] = value

    @property
    def layer_idx(self) -> int | None:
        """Number of the layer in the KV cache, also where the class gets it with each call and keeps none itself."""
        own = self.__dict__.get("layer_idx")
        return self.__dict__.get(LAYER) if own is None or own < 0 else own

    @layer_idx.setter
    def layer_idx(self, value: int | None) -> None:
        self.__dict__["layer_idx"] = value


class LookupAttention(PlacedAttention):
    """Mixin of patched attention modules of classes that compute attention inline.

    Their models know no attention implementation but their own; scores are computed as under "sdpa", and as under
    "eager" where attention weights are asked for.
    """

    host_eager = staticmethod(eager_attention_forward)
    scaling = None  # type: ignore[assignment]  # of a class that has none; others have it on the instance

    @property
    def backend(self) -> str:
        """As the class says."""
        forward = current_forward(self.__dict__[OWNER])  # of this thread
        return "eager" if forward is not None and forward.weights else "sdpa"

    def looked_up(self, call: dict[str, Any]) -> dict[str, Any]:
        """The `ForwardContext` of a call, or the positions of one outside a forward pass, as keywords of `attend`."""
        forward = call.get(KEYWORD) or current_forward(self.__dict__[OWNER])
        if forward is not None:
            return {KEYWORD: forward, "position_ids": forward.positions}
        if call.get("position_ids") is None:
            raise InvalidInput(
                f"{type(self).__name__} is called outside a forward pass of its model, so the positions of its "
                "tokens are unknown. Call the model, or pass position_ids."
            )
        return {"position_ids": call["position_ids"]}


class KeepsForwardAndCode(KeepsForward, AddsPositionCode):
    """Mixin of the first layer of such a model, where a scheme that adds codes to the embeddings adds them."""

    prefix = "KeptEmbedding"


def of_pairs(mask: Tensor | None, queries: int, forward: ForwardContext) -> Tensor | None:
    """A mask with a row for every query, without memory; one tensor for all layers that are called with the same."""
    if mask is None or mask.shape[-2] == queries:
        return mask
    known = forward.memos.setdefault("masks of pairs", {})
    if id(mask) not in known:
        known[id(mask)] = mask, mask.expand(*mask.shape[:-2], queries, -1)
    return known[id(mask)][1]  # type: ignore[index]


def of_visible(visible: Tensor | None, forward: ForwardContext | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as transformers' are, with the lowest number where ``visible [batch, 1, query or 1, key]`` is zero."""
    if visible is None or forward is None or (forward.padding is None and not forward.own_mask):
        return None
    known = forward.memos.setdefault("masks of what is visible", {})
    if id(visible) not in known:
        zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        hidden = zeros.masked_fill(~visible.bool(), torch.finfo(dtype).min)
        known[id(visible)] = visible, hidden.expand(-1, -1, visible.shape[-1], -1)
    return known[id(visible)][1]  # type: ignore[index]
