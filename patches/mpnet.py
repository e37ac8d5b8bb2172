"""Adapter of MPNet, which keeps position twice: in a table, and in a learned distance bias of its encoder.

    score[h, i, j] = q_i · k_j / √d + T[bucket(j − i), h]

One table T of buckets serves all layers. A patched encoder builds no ``[heads, query, key]`` tensor of it: a scheme
that replaces the model's positions leaves it out, and one that keeps them reads T by distance.

Song, Tan, Qin, Lu, Liu 2020, arXiv:2004.09297; the bias is from Raffel et al. 2019, arXiv:1910.10683, section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import MPNetModel
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetSelfAttention

from hf_posenc.core.geometry import Geometry
from hf_posenc.forward.current_forward import FIRST_POSITION_ID, USES_LOOKUP, KeepsForward
from hf_posenc.patches.adapter import Adapter, heads_of
from hf_posenc.patches.general.classes import above
from hf_posenc.patches.registry import register_adapter
from hf_posenc.patches.shared.lookup_attention import LAYER, LookupAttention
from hf_posenc.patches.shared.position_table import FIRST_ROW, SchemePositionTable
from hf_posenc.patches.shared.t5_bias import OwnBias, biases
from hf_posenc.schemes.base import Scheme

FIRST = 2  # position id and table row of the first token; the rows before belong to padding


class PatchedMPNetSelfAttention(LookupAttention, MPNetSelfAttention):
    """Self-attention that leaves position to ``scheme``. Parameters, names and outputs stay the model's own."""

    attention_head_size: int
    dropout_name = "dropout"
    is_causal = False
    score_factor = "factor"

    @property
    def factor(self) -> float:
        """Factor of q · k."""
        return float(self.attention_head_size**-0.5)

    def project_query(self, x: Tensor) -> Tensor:
        return heads_of(self.q(x), self.attention_head_size)

    def project_key(self, x: Tensor) -> Tensor:
        return heads_of(self.k(x), self.attention_head_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: None = None,
        output_attentions: bool = False,
        **host: Any,
    ) -> tuple[Tensor, ...]:
        """The model's own forward; see `MPNetSelfAttention`."""
        host = self.looked_up(host)
        v = heads_of(self.v(hidden_states), self.attention_head_size)
        q, k = self.project_query(hidden_states), self.project_key(hidden_states)
        mixed, weights = self.attend(q, k, v, hidden=hidden_states, cache=None, mask=attention_mask, host=host)
        out = self.o(mixed.flatten(2))
        return (out, weights) if output_attentions else (out,)  # type: ignore[return-value]


class UnbiasedMPNetEncoder(MPNetEncoder):
    """Encoder without its bias of scores, which the scheme replaces."""

    def compute_position_bias(self, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = 32) -> None:
        """Return None instead of a bias."""


def own_bias(encoder: Any, distance: Tensor) -> Tensor:
    """Bias ``[heads, …]`` that an encoder adds to scores at ``distance […]`` (query − key), float32."""
    bucket = MPNetEncoder.relative_position_bucket(-distance)
    return biases(encoder.relative_attention_bias, bucket)


@register_adapter("mpnet")
class MPNetAdapter(Adapter):
    """Where MPNet keeps position."""

    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {MPNetSelfAttention: PatchedMPNetSelfAttention}
    base_class = MPNetModel

    def trained_length(self, config: Any) -> int:
        return int(config.max_position_embeddings) - FIRST

    def geometry(self, config: Any, *, trained_length: int, target_length: int) -> Geometry:
        return Geometry(
            heads=config.num_attention_heads, kv_heads=config.num_attention_heads,
            head_dim=config.hidden_size // config.num_attention_heads, width=config.hidden_size,
            layers=config.num_hidden_layers, causal=False, biased=True,
            trained_length=trained_length, target_length=target_length,
            table=config.max_position_embeddings - FIRST,
        )  # fmt: skip

    def attentions(self, base: Any) -> Iterator[nn.Module]:
        return (layer.attention.attn for layer in base.encoder.layer)

    def own_positions(self, base: Any, geometry: Geometry, layer: int) -> OwnBias:
        return OwnBias(geometry, base.encoder, own_bias)

    def swaps(self, base: Any, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
        yield base.encoder, UnbiasedMPNetEncoder
        yield base.embeddings.position_embeddings, SchemePositionTable
        for layer in base.encoder.layer:
            yield layer, above(type(layer), KeepsForward)

    def attributes(self, base: Any) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
        yield base, {USES_LOOKUP: True, FIRST_POSITION_ID: FIRST}
        yield base.embeddings.position_embeddings, {FIRST_ROW: FIRST}
        for number, attention in enumerate(self.attentions(base)):
            yield attention, {LAYER: number}

    def frozen(self, base: Any, scheme: Scheme) -> Iterator[nn.Parameter]:
        if scheme.replaces_host:
            yield base.encoder.relative_attention_bias.weight
            if not scheme.keeps_table:
                yield base.embeddings.position_embeddings.weight

    def probe(self, base: Any, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        table, attention = base.embeddings.position_embeddings, base.encoder.layer[layer].attention.attn
        start = base.embeddings.LayerNorm(hidden + table(positions + FIRST))
        if isinstance(attention, PatchedMPNetSelfAttention):
            return attention(start, position_ids=positions)[0]
        # An unpatched model counts positions itself, so its bias at these positions is computed here.
        distance = positions[:, :, None] - positions[:, None, :]
        bias = own_bias(base.encoder, distance).transpose(0, 1).to(hidden.dtype)
        return attention(start, position_bias=bias)[0]
