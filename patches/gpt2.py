"""Adapter of GPT-2, which adds one position table before the first block. Its attention fuses q, k, v in `c_attn`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention, eager_attention_forward

from hf_posenc.core.geometry import Geometry
from hf_posenc.forward.attention import PatchedAttention
from hf_posenc.patches.adapter import Adapter, eager_mask, heads_of
from hf_posenc.patches.registry import register_adapter
from hf_posenc.patches.shared.position_table import SchemePositionTable
from hf_posenc.patches.shared.rope_parameters import TRAINED_LENGTH
from hf_posenc.schemes.base import Scheme


class PatchedGPT2Attention(PatchedAttention, GPT2Attention):
    """Self-attention that leaves position to ``scheme``. Parameters, names and outputs stay the model's own."""

    head_dim: int
    dropout_name = "attn_dropout"
    host_eager = staticmethod(eager_attention_forward)
    flattens_ids = True

    def project_query(self, x: Tensor) -> Tensor:
        return heads_of(self.c_attn(x).split(self.split_size, dim=-1)[0], self.head_dim)

    def project_key(self, x: Tensor) -> Tensor:
        return heads_of(self.c_attn(x).split(self.split_size, dim=-1)[1], self.head_dim)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        **host: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The model's own forward for self-attention; see `GPT2Attention`."""
        fused = self.c_attn(hidden_states).view(*hidden_states.shape[:-1], 3, -1, self.head_dim)
        q, k, v = fused.permute(2, 0, 3, 1, 4).unbind()
        mixed, weights = self.attend(q, k, v, hidden=hidden_states, mask=attention_mask, host=host)
        return self.resid_dropout(self.c_proj(mixed.reshape(*hidden_states.shape[:-1], -1))), weights


@register_adapter("gpt2")
class GPT2Adapter(Adapter):
    """Where GPT-2 keeps position."""

    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {GPT2Attention: PatchedGPT2Attention}
    base_class = GPT2Model

    def geometry(self, config: GPT2Config, *, trained_length: int, target_length: int) -> Geometry:
        return Geometry(
            heads=config.n_head, kv_heads=config.n_head, head_dim=config.n_embd // config.n_head, width=config.n_embd,
            layers=config.n_layer, causal=True, trained_length=trained_length, target_length=target_length,
            table=config.max_position_embeddings,
        )  # fmt: skip

    def scaled_already(self, config: GPT2Config) -> str | None:
        """``"a longer table"`` for an exported model whose table has more rows than in training, otherwise None."""
        return None if getattr(config, TRAINED_LENGTH, None) is None else "a longer table"

    def swaps(self, base: GPT2Model, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
        yield base.wpe, SchemePositionTable

    def frozen(self, base: GPT2Model, scheme: Scheme) -> Iterator[nn.Parameter]:
        if scheme.replaces_host and not scheme.keeps_table:
            yield base.wpe.weight

    def probe(self, base: GPT2Model, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        block = base.h[layer]
        mask = eager_mask(block.attn, hidden)
        return block.attn(block.ln_1(hidden + base.wpe(positions)), attention_mask=mask, position_ids=positions)[0]
