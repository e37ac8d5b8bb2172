"""Adapter of Falcon, which rotates queries and keys, or adds a linear bias (ALiBi) to the scores.

Its attention is inline and fuses q, k, v in three layouts: head by head, with one key head for all queries
(``multi_query``), or with one key head per group of queries (``new_decoder_architecture``). A patched model caches the
keys of a group once; transformers repeats them for each head. The model rounds the bias to bfloat16, and adds it before
it divides the scores by √head_dim. transformers adds the bias twice under ``eager`` and once under ``sdpa``; the
adapter adds it once.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import FalconConfig, FalconModel
from transformers.models.falcon.modeling_falcon import FalconAttention, FalconFlashAttention2, apply_rotary_pos_emb

from hf_posenc.core.geometry import Geometry
from hf_posenc.patches.registry import register_adapter
from hf_posenc.patches.shared.inline_decoder import InlineAdapter, InlineAttention, InlineDecoder
from hf_posenc.patches.shared.rotary_host import as_configured, host_rotary
from hf_posenc.schemes.bias.alibi import code_slopes


class PatchedFalconAttention(InlineAttention, FalconAttention):
    """Self-attention that leaves position to ``scheme``. Parameters, names and outputs stay the model's own."""

    @property
    def live_dropout(self) -> float:
        """Dropout probability of attention weights; with a rotation the model ignores ``attention_dropout``."""
        return super().live_dropout if self.config.alibi else 0.0

    @property
    def num_key_value_groups(self) -> int:  # type: ignore[override]
        """Query heads per key head."""
        return int(self.num_heads // self.num_kv_heads)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        groups = self.num_heads // self.num_kv_heads
        fused = self.query_key_value(x).unflatten(-1, (self.num_kv_heads, groups + 2, self.head_dim))
        q, k, v = fused.split([groups, 1, 1], dim=-2)
        return q.flatten(2, 3).transpose(1, 2), k.squeeze(3).transpose(1, 2), v.squeeze(3).transpose(1, 2)

    def project_output(self, mixed: Tensor) -> Tensor:
        return self.dense(mixed)

    def forward(
        self,
        hidden_states: Tensor,
        alibi: Any = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **host: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The model's own forward without its rotation or bias; see `FalconAttention`."""
        host["position_ids"] = position_ids
        return self.attend_with(alibi, hidden_states, mask=attention_mask, host=host)


class PatchedFalconFlashAttention2(PatchedFalconAttention, FalconFlashAttention2):
    """`PatchedFalconAttention` for models built with FlashAttention 2, which has its own attention class."""


class PatchedFalconModel(InlineDecoder, FalconModel):
    """The base model, without the rotation or bias that it computes for its layers."""

    @wraps(FalconModel.forward)
    def forward(self, **call: Any) -> Any:  # type: ignore[override]
        return self.run(**call)


@register_adapter("falcon")
class FalconAdapter(InlineAdapter):
    """Where Falcon keeps position."""

    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {
        FalconAttention: PatchedFalconAttention,
        FalconFlashAttention2: PatchedFalconFlashAttention2,
    }
    base_class = FalconModel
    patched_base = PatchedFalconModel
    length_dependent = ("dynamic", "longrope")

    def geometry(self, config: FalconConfig, *, trained_length: int, target_length: int) -> Geometry:
        heads, head_dim = config.num_attention_heads, config.head_dim
        grouped = config.new_decoder_architecture or not config.multi_query
        return Geometry(
            heads=heads, kv_heads=config.num_kv_heads if grouped else 1, head_dim=head_dim,
            width=config.hidden_size, layers=config.num_hidden_layers, causal=True,
            trained_length=trained_length, target_length=target_length,
            rotary=None if config.alibi else host_rotary(config, head_dim, by_length=self.length_dependent),
            slopes=own_slopes(heads, head_dim) if config.alibi else None,
        )  # fmt: skip

    def trained_length(self, config: FalconConfig) -> int:
        return config.max_position_embeddings if config.alibi else super().trained_length(config)

    def scaled_already(self, config: FalconConfig) -> str | None:
        return None if config.alibi else super().scaled_already(config)

    def normed(self, base: FalconModel, hidden: Tensor, layer: int) -> tuple[Any, Tensor]:
        block = base.h[layer]
        norm = block.ln_attn if hasattr(block, "ln_attn") else block.input_layernorm
        return block.self_attention, norm(hidden)

    def rotated(self, base: FalconModel, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        if base.config.alibi:
            return query, key
        cos, sin = as_configured(base.rotary_emb)(query.float(), positions)
        return apply_rotary_pos_emb(query.float(), key.float(), cos, sin)


def own_slopes(heads: int, head_dim: int) -> tuple[float, ...]:
    """Slopes of Falcon's bias on scaled scores: ALiBi's slopes rounded to bfloat16, divided by √head_dim."""
    rounded = torch.tensor(code_slopes(heads), device="cpu").bfloat16().double()
    return tuple((rounded / head_dim**0.5).tolist())
