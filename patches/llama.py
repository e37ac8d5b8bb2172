"""Adapter of Llama, whose only source of positions is the rotation (RoPE) of queries and keys in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRotaryEmbedding,
    eager_attention_forward,
)

from hf_posenc.core.geometry import Geometry
from hf_posenc.forward.attention import PatchedAttention
from hf_posenc.patches.adapter import Adapter, eager_mask, heads_of
from hf_posenc.patches.registry import register_adapter
from hf_posenc.patches.shared.rotary_host import AddsPositionCode, DisabledRotary, as_configured, host_rotary
from hf_posenc.schemes.base import Scheme, implements


class PatchedLlamaAttention(PatchedAttention, LlamaAttention):
    """Self-attention that leaves position to ``scheme``. Parameters, names and outputs stay the model's own."""

    head_dim: int
    host_eager = staticmethod(eager_attention_forward)

    def project_query(self, x: Tensor) -> Tensor:
        return heads_of(self.q_proj(x), self.head_dim)

    def project_key(self, x: Tensor) -> Tensor:
        return heads_of(self.k_proj(x), self.head_dim)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any = None, attention_mask: Tensor | None = None, **host: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The model's own forward without its rotation; see `LlamaAttention`."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        mixed, weights = self.attend(  # no local names: unrotated queries and keys are freed after their rotation
            self.q_proj(hidden_states).view(shape).transpose(1, 2),
            self.k_proj(hidden_states).view(shape).transpose(1, 2),
            self.v_proj(hidden_states).view(shape).transpose(1, 2),
            hidden=hidden_states, mask=attention_mask, host=host,
        )  # fmt: skip
        return self.o_proj(mixed.reshape(*hidden_states.shape[:-1], -1)), weights


class EmbeddingLlamaLayer(AddsPositionCode, LlamaDecoderLayer):
    """The first layer, which adds the position codes of a scheme to its input."""


class DisabledLlamaRotaryEmbedding(DisabledRotary, LlamaRotaryEmbedding):
    """The model's rotary module, disabled."""


@register_adapter("llama")
class LlamaAdapter(Adapter):
    """Where Llama keeps position."""

    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {LlamaAttention: PatchedLlamaAttention}
    base_class = LlamaModel
    length_dependent = ("dynamic", "longrope")

    def geometry(self, config: LlamaConfig, *, trained_length: int, target_length: int) -> Geometry:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return Geometry(
            heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, head_dim=head_dim,
            width=config.hidden_size, layers=config.num_hidden_layers, causal=True,
            trained_length=trained_length, target_length=target_length,
            rotary=host_rotary(config, head_dim, by_length=self.length_dependent),
        )  # fmt: skip

    def swaps(self, base: LlamaModel, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
        yield base.rotary_emb, DisabledLlamaRotaryEmbedding
        if implements(scheme, "embed"):
            yield base.layers[0], EmbeddingLlamaLayer

    def probe(self, base: LlamaModel, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        if isinstance(base.layers[0], EmbeddingLlamaLayer):
            hidden = base.layers[0].coded(hidden, positions)
        cos_sin, probed = as_configured(base.rotary_emb)(hidden, positions), base.layers[layer]
        call = {"position_embeddings": cos_sin, "position_ids": positions}
        mask = eager_mask(probed.self_attn, hidden)
        return probed.self_attn(probed.input_layernorm(hidden), attention_mask=mask, **call)[0]
