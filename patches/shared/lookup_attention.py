"""Patched attention for models that pass no keywords to their layers: it looks up its `ForwardContext`."""

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

LAYER = "posenc_layer"  # attribute of a patched module: its layer number, if its class keeps none


class PlacedAttention(PatchedAttention):
    """Mixin of patched attention modules whose classes may lack a configuration or a layer number."""

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.__dict__.get("config") or self.__dict__[OWNER].config

    @config.setter
    def config(self, value: Any) -> None:
        self.__dict__["config"] = value

    @property
    def layer_idx(self) -> int | None:
        """Number of the layer in the KV cache: of the class, or set by the adapter if the class keeps none."""
        number = self.__dict__.get("layer_idx")
        return self.__dict__.get(LAYER) if number is None or number < 0 else number

    @layer_idx.setter
    def layer_idx(self, value: int | None) -> None:
        self.__dict__["layer_idx"] = value


class LookupAttention(PlacedAttention):
    """Mixin of patched attention modules whose classes compute attention inline.

    These models have no choice of attention implementations. The patched module attends as under "sdpa", and as under
    "eager" if attention weights are requested.
    """

    host_eager = staticmethod(eager_attention_forward)

    @property
    def backend(self) -> str:
        """``"eager"`` if attention weights are requested, otherwise ``"sdpa"``."""
        forward = current_forward(self.__dict__[OWNER])  # of this thread
        return "eager" if forward is not None and forward.weights else "sdpa"

    def looked_up(self, call: dict[str, Any]) -> dict[str, Any]:
        """Keywords of `attend`: the `ForwardContext` and its positions, or only positions outside a forward pass."""
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
    """Mixin of the first layer of such a model: keeps the `ForwardContext`, and adds the scheme's position codes."""

    prefix = "KeptEmbedding"


def mask_per_query(mask: Tensor | None, queries: int, forward: ForwardContext) -> Tensor | None:
    """A mask expanded to one row per query, without memory; all layers called with the same mask share the result."""
    if mask is None or mask.shape[-2] == queries:
        return mask
    expanded = forward.memos.setdefault("masks of pairs", {})
    if id(mask) not in expanded:
        expanded[id(mask)] = mask, mask.expand(*mask.shape[:-2], queries, -1)
    return expanded[id(mask)][1]  # type: ignore[index]


def additive_mask(visible: Tensor | None, forward: ForwardContext | None, dtype: torch.dtype) -> Tensor | None:
    """Additive mask, lowest where ``visible [batch, 1, query or 1, key]`` is zero; None if nothing is hidden."""
    if visible is None or forward is None or (forward.padding is None and not forward.caller_mask):
        return None
    masks = forward.memos.setdefault("masks of what is visible", {})
    if id(visible) not in masks:
        zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        hidden = zeros.masked_fill(~visible.bool(), torch.finfo(dtype).min)
        masks[id(visible)] = visible, hidden.expand(-1, -1, visible.shape[-1], -1)
    return masks[id(visible)][1]  # type: ignore[index]
