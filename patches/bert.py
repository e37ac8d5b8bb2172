"""BERT keeps position in one table, added before the first layer's norm; as a decoder it is causal and has a cache.

Its embeddings gather token types by position from a buffer as long as the table, which raises beyond it even when the
table itself is out of use: the patched embeddings supply both themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel
from transformers.models.bert.modeling_bert import BertEmbeddings, BertSelfAttention, eager_attention_forward

from hf_posenc.core.geometry import Geometry
from hf_posenc.forward.attention import PatchedAttention
from hf_posenc.forward.host_calls import MODULES_FILL_PAGES
from hf_posenc.patches.adapter import Adapter, eager_mask
from hf_posenc.patches.registry import register_adapter
from hf_posenc.patches.shared.position_table import SchemePositionTable
from hf_posenc.schemes.base import Scheme


class PatchedBertSelfAttention(PatchedAttention, BertSelfAttention):
    """Self-attention that leaves position to ``scheme``. Parameters, names and outputs are the host's own."""

    dropout_name = "dropout"
    batches_continuously = not MODULES_FILL_PAGES  # its model asks the paged cache for a length, which that has not
    host_eager = staticmethod(eager_attention_forward)

    def project_query(self, x: Tensor) -> Tensor:
        return self.query(x).unflatten(-1, (-1, self.attention_head_size)).transpose(0, 1)

    def project_key(self, x: Tensor) -> Tensor:
        return self.key(x).unflatten(-1, (-1, self.attention_head_size)).transpose(0, 1)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **host: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The host's forward; see `BertSelfAttention`."""
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        q, k, v = (project(hidden_states).view(shape).transpose(1, 2) for project in (self.query, self.key, self.value))
        mixed, weights = self.attend(q, k, v, hidden=hidden_states, mask=attention_mask, host=host)
        return mixed.reshape(*hidden_states.shape[:-1], -1), weights


class UnboundedBertEmbeddings(BertEmbeddings):
    """Embeddings that read no buffer, so that only the scheme decides how long a text may be."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **cached: int,
    ) -> Tensor:
        """The host's forward with token types and positions filled in; see `BertEmbeddings`.

        ``cached`` is the number of tokens in the KV cache, under the name that this transformers has for it.
        """
        tokens = inputs_embeds if input_ids is None else input_ids
        batch, length = tokens.shape[:2]
        device = tokens.device  # the weights' own may be the meta device
        if position_ids is None:
            position_ids = (torch.arange(length, device=device) + sum(cached.values()))[None]
        if token_type_ids is None:
            token_type_ids = torch.zeros(batch, length, dtype=torch.long, device=device)
        return super().forward(input_ids, token_type_ids, position_ids, inputs_embeds)


@register_adapter("bert")
class BertAdapter(Adapter):
    """Where BERT keeps position."""

    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {BertSelfAttention: PatchedBertSelfAttention}
    base_class = BertModel

    def geometry(self, config: BertConfig, *, trained_length: int, target_length: int) -> Geometry:
        return Geometry(
            heads=config.num_attention_heads, kv_heads=config.num_attention_heads,
            head_dim=config.hidden_size // config.num_attention_heads, width=config.hidden_size,
            layers=config.num_hidden_layers, causal=config.is_decoder,
            trained_length=trained_length, target_length=target_length,
            table=config.max_position_embeddings,
        )  # fmt: skip

    def swaps(self, base: BertModel, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
        yield base.embeddings, UnboundedBertEmbeddings
        yield base.embeddings.position_embeddings, SchemePositionTable

    def frozen(self, base: BertModel, scheme: Scheme) -> Iterator[nn.Parameter]:
        if scheme.replaces_host and not scheme.keeps_table:
            yield base.embeddings.position_embeddings.weight

    def probe(self, base: BertModel, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        embeddings = base.embeddings
        start = embeddings.LayerNorm(hidden + embeddings.position_embeddings(positions))
        probed = base.encoder.layer[layer].attention.self
        return probed(start, attention_mask=eager_mask(probed, hidden), position_ids=positions)[0]
