"""Adapter of DeBERTa-v2 and -v3, which keep position in content–position scores, and some models in a table too.

    score[i, j] = (q_i · k_j + q_i · Kr[δ(i, j)] + k_j · Qr[δ(i, j)]) / √((1 + terms) d)

A patched encoder builds no ``[query, key]`` tensor of distances and no ``[heads, query, key]`` tensor of these terms.
A scheme that replaces the model's positions omits them. One that keeps them computes them as the scheme ``deberta``
does, from the model's own weights. The factor of q · k does not change.

He, Gao, Chen 2021, arXiv:2111.09543, section 3; see `hf_posenc.schemes.content.deberta`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DebertaV2Model
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DebertaV2Encoder,
    DisentangledSelfAttention,
    make_log_bucket_position,
)

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import UnsupportedModel
from hf_posenc.forward.current_forward import FIRST_POSITION_ID, USES_LOOKUP, KeepsForward
from hf_posenc.forward.positions import KEYWORD
from hf_posenc.patches.adapter import Adapter, heads_of
from hf_posenc.patches.general.classes import above
from hf_posenc.patches.registry import register_adapter
from hf_posenc.patches.shared.lookup_attention import LAYER, KeepsForwardAndCode, LookupAttention, additive_mask
from hf_posenc.patches.shared.position_table import SchemePositionTable, padded_to_width
from hf_posenc.patches.shared.rotary_host import AddsPositionCode
from hf_posenc.schemes.base import Scheme, implements
from hf_posenc.schemes.content.deberta import DeBERTa
from hf_posenc.schemes.host_rotation import HostRotation


class PatchedDisentangledSelfAttention(LookupAttention, DisentangledSelfAttention):
    """Self-attention that leaves position to ``scheme``. Parameters, names and outputs stay the model's own."""

    attention_head_size: int
    dropout_name = "dropout"
    is_causal = False
    score_factor = "factor"

    @property
    def factor(self) -> float:
        """Factor of q · k: 1 / √((1 + terms) d)."""
        return float((self.attention_head_size * (1 + len(terms_of(self)))) ** -0.5)

    def project_query(self, x: Tensor) -> Tensor:
        return heads_of(self.query_proj(x), self.attention_head_size)

    def project_key(self, x: Tensor) -> Tensor:
        return heads_of(self.key_proj(x), self.attention_head_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
        **host: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The model's own forward; see `DisentangledSelfAttention`."""
        if query_states is not None or relative_pos is not None:
            raise UnsupportedModel(
                "Attention of this DeBERTa is called with custom queries or distances, which no scheme reads. "
                "Leave out query_states, relative_pos and z_steps."
            )
        host = self.looked_up(host)
        mask = additive_mask(attention_mask, host.get(KEYWORD), hidden_states.dtype)
        q, k = self.project_query(hidden_states), self.project_key(hidden_states)
        v = heads_of(self.value_proj(hidden_states), self.attention_head_size)
        mixed, weights = self.attend(q, k, v, hidden=hidden_states, cache=None, mask=mask, host=host)
        return mixed.flatten(2), weights if output_attentions else None


def terms_of(attention: Any) -> list[str]:
    """The relative-position terms (``"c2p"``, ``"p2c"``) in a layer's scores."""
    return [term for term in ("c2p", "p2c") if term in attention.pos_att_type]


class UnbiasedDebertaV2Encoder(DebertaV2Encoder):
    """Encoder that computes no distances, and masks keys only: outputs of padding are never read."""

    def get_rel_pos(self, hidden_states: Any, query_states: Any = None, relative_pos: Any = None) -> Any:
        """Return the caller's ``relative_pos``, by default None, instead of distances."""
        return relative_pos

    def get_attention_mask(self, attention_mask: Tensor) -> Tensor:
        """Mask ``[batch, 1, query or 1, key]`` for a mask ``[batch, key]`` or ``[batch, query, key]``."""
        return attention_mask[:, None, None] if attention_mask.ndim <= 2 else super().get_attention_mask(attention_mask)


class OwnPositions:
    """Projections of relative positions in a layer that does not share them with content."""

    def __init__(self, attention: Any) -> None:
        self.attention = attention

    def key(self, x: Tensor) -> Tensor:
        """``[n, width]`` to ``[heads, n, head_dim]``."""
        return heads_of(self.attention.pos_key_proj(x), self.attention.attention_head_size)

    def query(self, x: Tensor) -> Tensor:
        """``[n, width]`` to ``[heads, n, head_dim]``."""
        return heads_of(self.attention.pos_query_proj(x), self.attention.attention_head_size)


class OwnDisentangled(DeBERTa, HostRotation):  # type: ignore[misc]  # its bias is DeBERTa's
    """Scheme of the model's own content–position terms, from its own weights and buckets.

    Args:
        geometry: geometry of the model.
        encoder: module with the table; the scheme refers to it and has no parameters.
    """

    encoder: Any
    record = HostRotation.record
    replaces_host = False

    def __init__(self, geometry: Geometry, encoder: Any) -> None:
        HostRotation.__init__(self, geometry)
        attentions = [layer.attention.self for layer in encoder.layer]
        projections = [] if attentions[0].share_att_key else [OwnPositions(one) for one in attentions]
        self.__dict__.update(encoder=encoder, own=projections)  # no submodules: their parameters are not the scheme's
        self.active, self.mirrored = terms_of(attentions[0]), False
        self.idle = frozenset(("logit_scale",))

    @property
    def side(self) -> int:
        return int(self.encoder.layer[0].attention.self.pos_ebd_size)

    @property
    def farthest(self) -> int:
        return max(int(self.encoder.max_relative_positions), self.side) + 1

    def reset_parameters(self) -> None:
        """Do nothing: all weights belong to the model."""

    def logit_scale(self) -> float:
        """One: the model's own factor of q · k includes the scale of the terms."""
        return 1.0

    def codes(self) -> Tensor:
        """The part of the model's table that layers project, ``[2 · side, width]``."""
        codes = self.encoder.get_rel_embedding()[: 2 * self.side]
        return self.encoder.layer[0].attention.self.pos_dropout(codes)

    def index(self, distance: Tensor) -> Tensor:
        """Table row δ of each distance (query − key), int64, same shape."""
        return (bucketed(self.encoder, distance) + self.side).clamp(0, 2 * self.side - 1)


def bucketed(encoder: Any, distance: Tensor) -> Tensor:
    """Bucket of each distance (query − key), int64, by the model's own code, which rounds a logarithm."""
    if encoder.position_buckets <= 0 or encoder.max_relative_positions <= 0:
        return distance.long()
    return make_log_bucket_position(distance, encoder.position_buckets, encoder.max_relative_positions).long()


@register_adapter("deberta-v2")
class DebertaV2Adapter(Adapter):
    """Where DeBERTa-v2 and DeBERTa-v3 keep position."""

    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {
        DisentangledSelfAttention: PatchedDisentangledSelfAttention
    }
    base_class = DebertaV2Model

    def geometry(self, config: Any, *, trained_length: int, target_length: int) -> Geometry:
        if getattr(config, "conv_kernel_size", 0) > 0:
            raise UnsupportedModel(
                "This DeBERTa has a convolution after its first layer, which encodes order under every scheme. Choose "
                "a version without it (conv_kernel_size=0), such as DeBERTa-v3."
            )
        biased = bool(config.relative_attention and config.pos_att_type)
        return Geometry(
            heads=config.num_attention_heads, kv_heads=config.num_attention_heads,
            head_dim=getattr(config, "attention_head_size", config.hidden_size // config.num_attention_heads),
            width=config.hidden_size, layers=config.num_hidden_layers, causal=False, biased=biased,
            trained_length=trained_length, target_length=target_length,
            table=config.max_position_embeddings if config.position_biased_input else None,
            embedding_width=getattr(config, "embedding_size", None),
        )  # fmt: skip

    def attentions(self, base: Any) -> Iterator[nn.Module]:
        return (layer.attention.self for layer in base.encoder.layer)

    def own_positions(self, base: Any, geometry: Geometry, layer: int) -> Scheme:
        return OwnDisentangled(geometry, base.encoder) if geometry.biased else HostRotation(geometry)

    def swaps(self, base: Any, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
        yield base.encoder, UnbiasedDebertaV2Encoder
        table = base.embeddings.position_embeddings
        if table is not None:
            yield table, SchemePositionTable
        for number, layer in enumerate(base.encoder.layer):
            codes = number == 0 and table is None and implements(scheme, "embed")
            yield layer, above(type(layer), KeepsForwardAndCode if codes else KeepsForward)

    def attributes(self, base: Any) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
        yield base, {USES_LOOKUP: True, FIRST_POSITION_ID: 0}
        for number, attention in enumerate(self.attentions(base)):
            yield attention, {LAYER: number}

    def frozen(self, base: Any, scheme: Scheme) -> Iterator[nn.Parameter]:
        if scheme.replaces_host:
            if base.encoder.relative_attention:
                yield base.encoder.rel_embeddings.weight
            if base.embeddings.position_embeddings is not None and not scheme.keeps_table:
                yield base.embeddings.position_embeddings.weight

    def probe(self, base: Any, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        table, first = base.embeddings.position_embeddings, base.encoder.layer[0]
        if isinstance(first, AddsPositionCode):
            hidden = first.coded(hidden, positions)
        if table is not None:
            hidden = hidden + padded_to_width(table(positions), hidden.shape[-1])
        attention, start = base.encoder.layer[layer].attention.self, base.embeddings.LayerNorm(hidden)
        if isinstance(attention, PatchedDisentangledSelfAttention):
            return attention(start, position_ids=positions)[0]
        # An unpatched model counts positions itself, so its buckets of these distances are computed here.
        distance = positions[:, :, None] - positions[:, None, :]
        keywords = {"relative_pos": bucketed(base.encoder, distance)} if base.encoder.relative_attention else {}
        visible = torch.ones(1, 1, *distance.shape[1:], device=start.device)
        return attention(start, visible, rel_embeddings=base.encoder.get_rel_embedding(), **keywords)[0]
