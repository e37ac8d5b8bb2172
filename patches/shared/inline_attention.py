"""Attention that is computed in the module itself, and whose layer hands it the keywords of the call.

What the patched attention of BLOOM, MPT and Falcon shares; `patches.shared.inline_decoder` says how they come.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hf_posenc.core.grouped_heads import products, repeated
from hf_posenc.forward.attention import AttentionOutput, PatchedAttention
from hf_posenc.forward.call_plan import CallPlan
from hf_posenc.forward.current_forward import OWNER


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **host: Any,
) -> AttentionOutput:
    """Attention with its weights; shapes as of transformers' attention functions.

    Without a mask one query sees all keys; several are the first of the text, whatever room a static cache has.
    """
    scores = products(query, key) * scaling
    if attention_mask is None:
        everything = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        attention_mask = everything if scores.shape[-2] == 1 else everything.tril()
    if attention_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    else:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    mixed = weights @ repeated(query, key, value)[1]
    return mixed.transpose(1, 2).contiguous(), weights


class InlineAttention(PatchedAttention):
    """Mixin of patched attention modules whose layers hand them the keywords of the call in place of a bias.

    Class attributes:
        factor_name: of the attribute that is the factor of q · k.
    """

    factor_name: ClassVar[str] = "inv_norm_factor"
    host_eager = staticmethod(eager_attention)
    batches_continuously = False
    is_causal = True

    @property
    def scaling(self) -> float:
        """Factor of q · k, which these classes have under other names."""
        return getattr(self, self.factor_name)

    @scaling.setter
    def scaling(self, value: float) -> None:
        setattr(self, self.factor_name, value)

    @property
    def backend(self) -> str:
        return self.__dict__[OWNER].backend

    @property
    def config(self) -> Any:
        """The model's configuration, which some of these modules do not keep."""
        return self.__dict__[OWNER].config

    @config.setter
    def config(self, value: Any) -> None:
        self.__dict__["config"] = value

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of ``x [batch, token, width]``, each ``[batch, heads or kv_heads, token, head_dim]``."""
        raise NotImplementedError

    def project_output(self, mixed: Tensor) -> Tensor:
        """Mixed values ``[batch, token, heads · head_dim]`` to the output of attention, ``[batch, token, width]``."""
        raise NotImplementedError

    def project_query(self, x: Tensor) -> Tensor:
        return self.split(x[None])[0][0]

    def project_key(self, x: Tensor) -> Tensor:
        return self.split(x[None])[1][0]

    def attend_at(self, place: Any, hidden: Tensor, *, mask: Tensor | None, host: dict[str, Any]) -> AttentionOutput:
        """Output of attention ``[batch, token, width]`` and its weights, or None.

        Args:
            place: what the layer hands over where its model's bias was, if it is not called on its own.
            hidden: ``[batch, token, width]``.
            mask: as transformers made it for the backend in use.
            host: the call's other keywords, its KV cache among them.
        """
        host = host if place is None else {**host, **place}
        q, k, v = self.split(hidden)
        mixed, weights = self.attend(q, k, v, hidden=hidden, mask=mask, host=host)
        return self.project_output(mixed.flatten(2)), weights

    def _by_host(
        self, q: Tensor, k: Tensor, v: Tensor, terms: Any, mask: Any, host: dict[str, Any], plan: CallPlan
    ) -> AttentionOutput:
        """As elsewhere; but these models return attention weights whatever the backend."""
        if host.get("output_attentions") and (mask is None or isinstance(mask, Tensor)):
            return eager_attention(self, q, k, v, mask, self.scaling * terms.logit_scale, self.live_dropout)
        return super()._by_host(q, k, v, terms, mask, host, plan)
