"""Adapter of MPT, whose only source of positions is a linear bias (ALiBi) on the scores of every layer.

Its own bias ends at ``max_seq_len``. transformers ignores the entries about positions in its configuration
(``attn_config``, ``learned_pos_emb``).
"""

from __future__ import annotations

from functools import wraps
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import MptConfig, MptModel
from transformers.models.mpt.modeling_mpt import MptAttention

from hf_posenc.core.geometry import Geometry
from hf_posenc.patches.registry import register_adapter
from hf_posenc.patches.shared.inline_decoder import InlineAdapter, InlineAttention, InlineDecoder
from hf_posenc.schemes.bias.alibi import code_slopes


class PatchedMptAttention(InlineAttention, MptAttention):
    """Self-attention that leaves position to ``scheme``. Parameters, names and outputs stay the model's own."""

    score_factor = "softmax_scale"
    dropout_name = "attn_dropout_p"

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fused = self.Wqkv(x)
        if self.clip_qkv:
            fused = fused.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        q, k, v = fused.unflatten(-1, (3, -1, self.head_dim)).permute(2, 0, 3, 1, 4).unbind()
        return q, k, v

    def project_output(self, mixed: Tensor) -> Tensor:
        return self.out_proj(mixed)

    def forward(
        self, hidden_states: Tensor, position_bias: Any = None, attention_mask: Tensor | None = None, **host: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The model's own forward without its bias; see `MptAttention`."""
        return self.attend_with(position_bias, hidden_states, mask=attention_mask, host=host)


class PatchedMptModel(InlineDecoder, MptModel):
    """The base model, without the bias that it computes for its layers."""

    layers_name, norm_name, bias_name = "blocks", "norm_f", "position_bias"

    @wraps(MptModel.forward)
    def forward(self, **call: Any) -> Any:  # type: ignore[override]
        return self.run(**call)


@register_adapter("mpt")
class MptAdapter(InlineAdapter):
    """Where MPT keeps position."""

    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {MptAttention: PatchedMptAttention}
    base_class = MptModel
    patched_base = PatchedMptModel

    def geometry(self, config: MptConfig, *, trained_length: int, target_length: int) -> Geometry:
        return Geometry(
            heads=config.n_heads, kv_heads=config.n_heads, head_dim=config.d_model // config.n_heads,
            width=config.d_model, layers=config.n_layers, causal=True,
            trained_length=trained_length, target_length=target_length, slopes=tuple(code_slopes(config.n_heads)),
        )  # fmt: skip

    def trained_length(self, config: MptConfig) -> int:
        """``max_seq_len``."""
        return config.max_seq_len

    def normed(self, base: MptModel, hidden: Tensor, layer: int) -> tuple[Any, Tensor]:
        block = base.blocks[layer]
        return block.attn, block.norm_1(hidden)
