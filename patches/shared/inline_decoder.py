"""Shared adapter code for BLOOM, MPT and Falcon: inline attention, and a linear bias built by the base model.

The layers of these models drop the keywords that carry the `ForwardContext`, but pass on the bias. The patched base
model therefore builds no bias, and passes the keywords in the bias argument of its layers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.models.llama.modeling_llama import eager_attention_forward

from hf_posenc.core.grouped_heads import products, repeated
from hf_posenc.forward.attention import RotatedCall
from hf_posenc.forward.current_forward import OWNER
from hf_posenc.forward.engine_backend import ENGINE_BACKENDS, AttentionOutput
from hf_posenc.forward.host_calls import cache_in_result, cache_of_mask, pop_cache
from hf_posenc.forward.positions import KEYWORD
from hf_posenc.patches.adapter import Adapter, eager_mask
from hf_posenc.patches.shared.lookup_attention import PlacedAttention
from hf_posenc.patches.shared.rotary_host import AddsPositionCode
from hf_posenc.schemes.base import Scheme

if TYPE_CHECKING:
    from transformers import Cache

SDPA: Any = SimpleNamespace(_attn_implementation="sdpa")  # a configuration for `create_causal_mask`


def attention_with_slopes(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, slopes: tuple[float, ...] | None, positions: Tensor
) -> Tensor:
    """Causal attention with the bias −slope · distance, or none, by the formula: ``[batch, token, heads · head_dim]``.

    The computation is in float32 for any dtype of ``query``. The models themselves count the bias from the first token
    in their own dtype; in bfloat16 rounding removes all of it at position 1,000.
    """
    distance = positions[:, None, :, None] - positions[:, None, None, :]
    scores = products(query.float(), key.float()) * scaling
    if slopes is not None:
        scores = scores - torch.tensor(slopes, device=scores.device)[:, None, None] * distance
    weights = scores.masked_fill(distance < 0, -torch.inf).softmax(-1)
    mixed = weights @ repeated(query, key, value)[1].float()
    return mixed.transpose(1, 2).flatten(2).to(value.dtype)


class InlineDecoder(AddsPositionCode):
    """Mixin of the patched base models: runs the same layers, with the keywords of the call in the bias argument.

    Class attributes:
        layers_name: attribute of the list of layers.
        norm_name: attribute of the last norm.
        bias_name: keyword of the layers for the bias.
    """

    layers_name: ClassVar[str] = "h"
    norm_name: ClassVar[str] = "ln_f"
    bias_name: ClassVar[str] = "alibi"

    config: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__name__ = cls.__name__.removeprefix("Patched")  # saving writes this name as the architecture

    @property
    def backend(self) -> str:
        """Name of the attention implementation in use; sdpa if the model itself supports only eager."""
        return self.config._attn_implementation if self._supports_sdpa else SDPA._attn_implementation

    def embedded(self, tokens: Tensor) -> Tensor:
        """Input ``[batch, token, width]`` of the first layer for token embeddings of that shape; by default equal."""
        return tokens

    def run(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        **call: Any,
    ) -> Any:
        """The model's own forward without its bias; its call is checked, and the cache is made."""
        cache, positions = pop_cache(call), call[KEYWORD].positions
        weights = self.config.output_attentions if output_attentions is None else output_attentions
        states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        tokens = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        hidden = self.coded(self.embedded(tokens), positions)
        mask = create_causal_mask(
            config=self.config if self._supports_sdpa else SDPA, inputs_embeds=hidden, attention_mask=attention_mask,
            position_ids=position_ids, **cache_of_mask(cache),
        )  # fmt: skip
        keywords = {**call, "position_ids": positions, "output_attentions": weights}
        passed = {
            self.bias_name: keywords, "attention_mask": mask, "layer_past": cache,
            "use_cache": cache is not None, "output_attentions": weights,
        }  # fmt: skip
        all_states: tuple[Tensor, ...] = ()
        all_weights: tuple[Tensor | None, ...] = ()
        for layer in getattr(self, self.layers_name):
            all_states += (hidden,) if states else ()
            hidden, attended = layer(hidden, **passed)
            all_weights += (attended,) if weights else ()
        hidden = getattr(self, self.norm_name)(hidden)
        out = BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden,
            **cache_in_result(cache),
            hidden_states=(*all_states, hidden) if states else None,
            attentions=all_weights if weights else None,
        )
        return_dict = self.config.return_dict if return_dict is None else return_dict
        return out if return_dict else out.to_tuple()


class InlineAdapter(Adapter):
    """Base class of the adapters for BLOOM, MPT and Falcon.

    Class attributes:
        patched_base: class that replaces `base_class`.
    """

    patched_base: ClassVar[type[nn.Module]]

    def swaps(self, base: nn.Module, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
        yield base, self.patched_base

    @abstractmethod
    def normed(self, base: nn.Module, hidden: Tensor, layer: int) -> tuple[Any, Tensor]:
        """The attention module of a layer, and its input for the layer input ``hidden [batch, token, width]``."""

    def rotated(self, base: nn.Module, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys with the rotation of the unpatched model; by default unrotated."""
        return query, key

    def probe(self, base: nn.Module, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        """Attention output of a layer; for an unpatched model computed by `attention_with_slopes`."""
        if isinstance(base, InlineDecoder):
            attention, normed = self.normed(base, base.coded(hidden, positions), layer)
            return attention(normed, attention_mask=eager_mask(attention, hidden), position_ids=positions)[0]
        attention, normed = self.normed(base, hidden, layer)
        patched: Any = self.patched_class(attention)
        slopes = self.geometry(base.config, trained_length=1, target_length=1).slopes
        q, k, v = patched.split(attention, normed)
        q, k = self.rotated(base, q, k, positions)
        mixed = attention_with_slopes(q, k, v, getattr(attention, patched.score_factor), slopes, positions)
        return patched.project_output(attention, mixed)


class InlineAttention(PlacedAttention):
    """Mixin of patched attention modules that receive the keywords of the call in the bias argument."""

    score_factor = "inv_norm_factor"
    host_eager = staticmethod(eager_attention_forward)
    batches_continuously = False
    is_causal = True
    num_key_value_groups = 1  # query heads per key head, under the name that transformers' eager attention reads

    @property
    def backend(self) -> str:
        return self.__dict__[OWNER].backend

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

    def attend_with(self, call: Any, hidden: Tensor, *, mask: Tensor | None, host: dict[str, Any]) -> AttentionOutput:
        """Output of attention ``[batch, token, width]`` and its weights, or None.

        Args:
            call: keywords of the base model's call, from the bias argument; None if the layer is called alone.
            hidden: input of the attention, ``[batch, token, width]``.
            mask: attention mask of the model.
            host: other keywords of the attention's forward.
        """
        host = host if call is None else {**host, **call}
        q, k, v = self.split(hidden)
        mixed, weights = self.attend(q, k, v, hidden=hidden, mask=mask, host=host)
        return self.project_output(mixed.flatten(2)), weights

    def mix(self, call: RotatedCall, host: dict[str, Any], cache: Cache | None) -> AttentionOutput:
        """Compute a rotated call; by the engine if weights are requested, which these models return under sdpa too."""
        if host.get("output_attentions") and call.plan.backend in ENGINE_BACKENDS:
            return self._attend_by_engine(call, host, cache)
        return super().mix(call, host, cache)
