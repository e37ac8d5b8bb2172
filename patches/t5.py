"""Adapters of T5, mT5 and UMT5, which keep position in a learned distance bias that every layer adds to its scores.

An encoder stack sees both sides, a decoder stack earlier tokens only; scores are not scaled (the factor is 1). T5 and
mT5 learn one table per stack, in its first layer, and UMT5 one in every layer. A patched stack builds no
``[heads, query, key]`` tensor of that bias. A scheme that replaces the model's positions omits it, and one that keeps
them reads the table by distance. Cross-attention and the feed-forward layers are not touched.

Configurations of these models contain no length, except ``n_positions`` in files from before 2021. The default is the
length of the pre-training texts: 512 tokens for T5 (Raffel et al. 2020, arXiv:1910.10683, section 3.1.2), and 1,024
for mT5 (Xue et al. 2021, arXiv:2010.11934, section 3.2), whose recipe UMT5 follows. ``trained_length=`` overrides it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import transformers
from torch import Tensor, nn
from transformers.models.mt5.modeling_mt5 import MT5Attention, MT5Stack
from transformers.models.t5 import modeling_t5
from transformers.models.t5.modeling_t5 import T5Attention, T5Stack
from transformers.models.umt5.modeling_umt5 import UMT5Attention, UMT5Stack

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import UnsupportedModel
from hf_posenc.forward.attention import PatchedAttention
from hf_posenc.forward.validate_inputs import refuse_keyword
from hf_posenc.patches.adapter import Adapter, eager_mask, heads_of
from hf_posenc.patches.general.classes import above
from hf_posenc.patches.registry import register_adapter
from hf_posenc.patches.shared.rotary_host import AddsPositionCode
from hf_posenc.patches.shared.t5_bias import OwnBias, own_bias
from hf_posenc.schemes.base import Scheme, implements

if not hasattr(modeling_t5, "eager_attention_forward"):
    raise UnsupportedModel(
        f"T5 computes its attention itself in transformers {transformers.__version__}, where it cannot be replaced. "
        "Update transformers; 5.23 is tested."
    )
eager_attention_forward = modeling_t5.eager_attention_forward


class PatchedT5Like(PatchedAttention):
    """Base class of the patched self-attention of T5, mT5 and UMT5."""

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear
    dropout_name = "dropout"
    key_value_proj_dim: int
    host_eager = staticmethod(eager_attention_forward)

    def project_query(self, x: Tensor) -> Tensor:
        return heads_of(self.q(x), self.key_value_proj_dim)

    def project_key(self, x: Tensor) -> Tensor:
        return heads_of(self.k(x), self.key_value_proj_dim)

    def attended(self, hidden: Tensor, mask: Tensor | None, host: dict[str, Any]) -> Any:
        """Output ``[batch, query, width]`` of the self-attention, and its weights or None."""
        q, k, v = (heads_of(project(hidden), self.key_value_proj_dim) for project in (self.q, self.k, self.v))
        mixed, weights = self.attend(q, k, v, hidden=hidden, mask=mask, host=host)
        return self.o(mixed.flatten(2)), weights


class SharedBiasAttention(PatchedT5Like):
    """Self-attention of T5 and mT5, which returns the bias for the other layers: None in a patched stack."""

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        **host: Any,
    ) -> tuple[Tensor, None, Tensor | None]:
        """The model's own forward for self-attention; see `T5Attention`."""
        if position_bias is not None:
            refuse_keyword("position_bias", position_bias, self.scheme)
        mixed, weights = self.attended(hidden_states, mask, host)
        return mixed, None, weights


class PatchedT5Attention(SharedBiasAttention, T5Attention):
    """T5's self-attention, which leaves position to ``scheme``. Parameters and names stay the model's own."""


class PatchedMT5Attention(SharedBiasAttention, MT5Attention):
    """mT5's self-attention, which leaves position to ``scheme``. Parameters and names stay the model's own."""


class PatchedUMT5Attention(PatchedT5Like, UMT5Attention):
    """UMT5's self-attention, which leaves position to ``scheme``. Parameters and names stay the model's own."""

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **host: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The model's own forward for self-attention; see `UMT5Attention`."""
        return self.attended(hidden_states, attention_mask, host)


@register_adapter("t5")
class T5Adapter(Adapter):
    """Where T5 keeps position.

    Class attributes:
        pretraining_length: length of the pre-training texts, in tokens.
    """

    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {T5Attention: PatchedT5Attention}
    base_class: ClassVar[type[nn.Module]] = T5Stack
    pretraining_length: ClassVar[int] = 512

    def trained_length(self, config: Any) -> int:
        stated = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
        return next((length for length in stated if length is not None), self.pretraining_length)

    def geometry(self, config: Any, *, trained_length: int, target_length: int) -> Geometry:
        return Geometry(
            heads=config.num_heads, kv_heads=config.num_heads, head_dim=config.d_kv, width=config.d_model,
            layers=config.num_layers, causal=config.is_decoder, biased=True,
            trained_length=trained_length, target_length=target_length,
        )  # fmt: skip

    def attentions(self, base: Any) -> Iterator[nn.Module]:
        return (block.layer[0].SelfAttention for block in base.block)

    def tables(self, base: Any) -> list[nn.Module]:
        """The attention modules with a bias table."""
        return [one for one in self.attentions(base) if one.has_relative_attention_bias]

    def own_positions(self, base: nn.Module, geometry: Geometry, layer: int) -> OwnBias:
        tables = self.tables(base)
        shared = len(tables) == 1
        return OwnBias(geometry, tables[0 if shared else layer], own_bias, shared=shared)

    def swaps(self, base: Any, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
        if implements(scheme, "embed"):
            yield base.block[0], above(type(base.block[0]), AddsPositionCode)

    def frozen(self, base: nn.Module, scheme: Scheme) -> Iterator[nn.Parameter]:
        if scheme.replaces_host:
            yield from (one.relative_attention_bias.weight for one in self.tables(base))  # type: ignore[misc]

    def probe(self, base: Any, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        if isinstance(base.block[0], AddsPositionCode):
            hidden = base.block[0].coded(hidden, positions)
        sublayer = base.block[layer].layer[0]
        attention, hidden = sublayer.SelfAttention, sublayer.layer_norm(hidden)
        if isinstance(attention, PatchedT5Like):
            return attention.attended(hidden, eager_mask(attention, hidden), {"position_ids": positions})[0]
        # An unpatched model counts positions itself, so its bias at these positions is computed here.
        tables = self.tables(base)
        distance = positions[:, :, None] - positions[:, None, :]
        bias = own_bias(tables[0 if len(tables) == 1 else layer], distance).transpose(0, 1).to(hidden.dtype)
        if attention.is_causal:
            bias = bias.masked_fill(distance[:, None] < 0, torch.finfo(hidden.dtype).min)
        projections = (attention.q, attention.k, attention.v)
        q, k, v = (heads_of(project(hidden), attention.key_value_proj_dim) for project in projections)
        mixed, _ = eager_attention_forward(attention, q, k, v, None, scaling=attention.scaling, position_bias=bias)
        return attention.o(mixed.flatten(2))


@register_adapter("mt5")
class MT5Adapter(T5Adapter):
    """Where mT5 keeps position."""

    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {MT5Attention: PatchedMT5Attention}
    base_class = MT5Stack
    pretraining_length = 1024


@register_adapter("umt5")
class UMT5Adapter(T5Adapter):
    """Where UMT5 keeps position."""

    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {UMT5Attention: PatchedUMT5Attention}
    base_class = UMT5Stack
    pretraining_length = 1024
