"""Llama rotates queries and keys in every attention module; nothing else of it knows position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaModel,
    LlamaRotaryEmbedding,
    eager_attention_forward,
)

from hf_posenc.core.geometry import (
    Geometry,
    HostRotary,
    Rotation,
    geometric,
)
from hf_posenc.patches.adapter import Adapter, eager_mask
from hf_posenc.patches.attention import PatchedAttention
from hf_posenc.patches.placement import scheme_on
from hf_posenc.patches.positions import KEYWORD
from hf_posenc.patches.registry import register_adapter
from hf_posenc.schemes.base import Scheme, implements


class PatchedLlamaAttention(PatchedAttention, LlamaAttention):
    """Self-attention that leaves position to ``scheme``. Parameters, names and outputs are the host's own."""

    attention_dropout: float
    host_eager = staticmethod(eager_attention_forward)

    @property
    def live_dropout(self) -> float:
        return self.attention_dropout if self.training else 0.0

    def project_query(self, x: Tensor) -> Tensor:
        return self.q_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)

    def project_key(self, x: Tensor) -> Tensor:
        return self.k_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: Any = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **host: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The host's forward without its rotation; see `LlamaAttention`."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        mixed, weights = self.attend(  # handed over unnamed: what is rotated need not outlive its rotation
            self.q_proj(hidden_states).view(shape).transpose(1, 2),
            self.k_proj(hidden_states).view(shape).transpose(1, 2),
            self.v_proj(hidden_states).view(shape).transpose(1, 2),
            hidden=hidden_states, cache=past_key_values, mask=attention_mask, host=host,
        )  # fmt: skip
        return self.o_proj(mixed.reshape(*hidden_states.shape[:-1], -1)), weights


class EmbeddingLlamaLayer(LlamaDecoderLayer):
    """The first layer, where a scheme that adds codes to the embeddings adds them."""

    def forward(self, hidden_states: Tensor, **call: Any) -> Tensor:  # type: ignore[override]
        """The host's forward on ``hidden_states`` plus the code of every position."""
        told = call.get(KEYWORD)
        positions = call["position_ids"] if told is None or told.moved is None else told.moved
        return super().forward(self.coded(hidden_states, positions), **call)

    def coded(self, hidden_states: Tensor, positions: Tensor) -> Tensor:
        """``hidden_states [batch, token, width]`` plus the code of ``positions [batch or 1, token]``."""
        device = hidden_states.device
        code = scheme_on(self.self_attn.scheme, device).embed(positions.to(device))
        return hidden_states if code is None else hidden_states + code.to(hidden_states.dtype)


class SilentRotaryEmbedding(LlamaRotaryEmbedding):
    """The host's tables of cosines, which nobody reads any more, are not computed."""

    def forward(self, x: Tensor, position_ids: Tensor) -> None:  # type: ignore[override]
        """Nothing."""


@register_adapter("llama")
class LlamaAdapter(Adapter):
    """Where Llama keeps position."""

    name = "llama"
    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {LlamaAttention: PatchedLlamaAttention}
    base_class = LlamaModel
    length_dependent = ("dynamic", "longrope")

    def geometry(self, config: LlamaConfig, *, trained_length: int, target_length: int) -> Geometry:  # type: ignore[override]
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return Geometry(
            heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, head_dim=head_dim,
            width=config.hidden_size, layers=config.num_hidden_layers, causal=True,
            trained_length=trained_length, target_length=target_length, rotary=host_rotary(config, head_dim),
        )  # fmt: skip

    def trained_length(self, config: PreTrainedConfig) -> int:
        before = config.rope_parameters.get("original_max_position_embeddings")
        return int(before or config.max_position_embeddings)

    def scaled_already(self, config: PreTrainedConfig) -> str | None:
        kind = config.rope_parameters["rope_type"]
        return None if kind == "default" else kind

    def swaps(self, base: LlamaModel, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:  # type: ignore[override]
        yield base.rotary_emb, SilentRotaryEmbedding
        if implements(scheme, "embed"):
            yield base.layers[0], EmbeddingLlamaLayer

    def frozen(self, base: nn.Module, scheme: Scheme) -> Iterator[nn.Parameter]:
        return iter(())

    def probe(self, base: LlamaModel, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:  # type: ignore[override]
        if isinstance(base.layers[0], EmbeddingLlamaLayer):
            hidden = base.layers[0].coded(hidden, positions)
        turns, probed = as_configured(base.rotary_emb)(hidden, positions), base.layers[layer]
        told = {"position_embeddings": turns, "position_ids": positions}
        mask = eager_mask(probed.self_attn, hidden)
        return probed.self_attn(probed.input_layernorm(hidden), attention_mask=mask, **told)[0]


def as_configured(rotary: LlamaRotaryEmbedding) -> LlamaRotaryEmbedding:
    """The host's rotation without what a cast to half precision did to its frequencies: radians, from 10³ on."""
    if isinstance(rotary, SilentRotaryEmbedding) or rotary.inv_freq.is_meta:
        return rotary
    own, fresh = rotary.inv_freq, type(rotary)(rotary.config).to(rotary.inv_freq.device)
    casts = (fresh.inv_freq.to(dtype).to(own.dtype) for dtype in (torch.float16, torch.bfloat16))
    return fresh if any(torch.equal(own, cast) for cast in casts) else rotary


def host_rotary(config: LlamaConfig, head_dim: int) -> HostRotary:
    """The rotation a configuration describes; from its numbers, as a cast model has rounded its ``inv_freq``."""
    kind, base = config.rope_parameters["rope_type"], float(config.rope_parameters["rope_theta"])
    if kind == "default" or kind in LlamaAdapter.length_dependent:  # the latter have no fixed frequencies to build on
        return HostRotary(Rotation(geometric(base, head_dim)), base)
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return HostRotary(Rotation(tuple(frequencies.double().tolist())), base, factor**2)
