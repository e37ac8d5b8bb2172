"""Adapter of BLOOM, whose only source of positions is a linear bias (ALiBi) on the scores of every layer.

Its attention is inline, fuses q, k and v head by head, and adds the residual itself.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import BloomConfig, BloomModel
from transformers.models.bloom.modeling_bloom import BloomAttention, dropout_add

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import UnsupportedModel
from hf_posenc.patches.registry import register_adapter
from hf_posenc.patches.shared.inline_decoder import InlineAdapter, InlineAttention, InlineDecoder
from hf_posenc.patches.shared.rope_parameters import TRAINED_LENGTH
from hf_posenc.schemes.bias.alibi import code_slopes

TRAINED_ON = 2048  # tokens, for all BLOOM models: Le Scao et al. 2022, arXiv:2211.05100, section 3.2


class PatchedBloomAttention(InlineAttention, BloomAttention):
    """Self-attention that leaves position to ``scheme``. Parameters, names and outputs stay the model's own."""

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fused = self.query_key_value(x).unflatten(-1, (-1, 3, self.head_dim))
        q, k, v = fused.permute(3, 0, 2, 1, 4).unbind()
        return q, k, v

    def project_output(self, mixed: Tensor) -> Tensor:
        return self.dense(mixed)

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor | float = 0.0,
        alibi: Any = None,
        attention_mask: Tensor | None = None,
        **host: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The model's own forward without its bias; see `BloomAttention`."""
        out, weights = self.attend_with(alibi, hidden_states, mask=attention_mask, host=host)
        return dropout_add(out, residual, self.hidden_dropout, self.training), weights


class PatchedBloomModel(InlineDecoder, BloomModel):
    """The base model, without the bias that it computes for its layers."""

    def embedded(self, tokens: Tensor) -> Tensor:
        return self.word_embeddings_layernorm(tokens)

    @wraps(BloomModel.forward)
    def forward(self, **call: Any) -> Any:  # type: ignore[override]
        return self.run(**call)


@register_adapter("bloom")
class BloomAdapter(InlineAdapter):
    """Where BLOOM keeps position."""

    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {BloomAttention: PatchedBloomAttention}
    base_class = BloomModel
    patched_base = PatchedBloomModel

    def geometry(self, config: BloomConfig, *, trained_length: int, target_length: int) -> Geometry:
        if config.pretraining_tp > 1 and config.slow_but_exact:
            raise UnsupportedModel(
                "slow_but_exact of this BLOOM model computes its output projection in parts, without its bias, and "
                "patched layers do not. Set config.slow_but_exact = False."
            )
        return Geometry(
            heads=config.n_head, kv_heads=config.n_head, head_dim=config.hidden_size // config.n_head,
            width=config.hidden_size, layers=config.n_layer, causal=True,
            trained_length=trained_length, target_length=target_length, slopes=tuple(code_slopes(config.n_head)),
        )  # fmt: skip

    def trained_length(self, config: BloomConfig) -> int:
        """``seq_length`` of the configuration, as published ones have it; otherwise `TRAINED_ON`."""
        stated = getattr(config, TRAINED_LENGTH, None) or getattr(config, "seq_length", None)
        return int(stated or TRAINED_ON)

    def normed(self, base: BloomModel, hidden: Tensor, layer: int) -> tuple[Any, Tensor]:
        block = base.h[layer]
        return block.self_attention, block.input_layernorm(hidden)
