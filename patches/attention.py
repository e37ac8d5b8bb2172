"""What all adapters share: the meeting of scheme, cache and engine, and what an adapter must say of its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_attn
from hf_posenc.attention.routes import dense_blocks, flex, length_rotation
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import Terms
from hf_posenc.errors import BackendCannotCarry
from hf_posenc.patches.cache import paged
from hf_posenc.patches.cache.eviction import (
    has_gaps,
    mask_is_shorter,
    mask_of_gaps,
    mask_of_held,
)
from hf_posenc.patches.cache.key_layout import (
    grows,
    pack_keys,
    unpack_keys,
    widen,
)
from hf_posenc.patches.cache.length_rotated import length_rotation_of
from hf_posenc.patches.cache.self_attention import self_attention_cache
from hf_posenc.patches.context_parallel import context_parallel_active, refuse_context_parallel
from hf_posenc.patches.placement import scheme_on
from hf_posenc.patches.positions import KEYWORD, context_of, is_causal_only
from hf_posenc.patches.rotate_qk import copies_of, rotated, scaled
from hf_posenc.patches.validate_keywords import check_keywords

if TYPE_CHECKING:
    from transformers import PreTrainedConfig
    from transformers.cache_utils import Cache

    from hf_posenc.schemes.base import Scheme

AttentionOutput = tuple[Tensor, Tensor | None]


class PatchedAttention(nn.Module):
    """Mixin of the patched attention modules: attention that leaves position to ``scheme``.

    Class attributes:
        host_eager: the host's own eager attention function.
        flattens_ids: whether the base model takes ids with more axes, such as ``[batch, choice, token]``, as rows.
    """

    layer_idx: int | None
    scaling: float
    is_causal: bool
    config: PreTrainedConfig
    host_eager: ClassVar[Callable[..., tuple[Tensor, Tensor | None]]]
    flattens_ids: ClassVar[bool] = False

    @property
    def scheme(self) -> Scheme:
        """The layer's own scheme, or the one its model shares."""
        own = self._modules.get("posenc")
        return self.__dict__["posenc_owner"].posenc if own is None else own  # type: ignore[return-value]

    @property
    def live_dropout(self) -> float:
        """Probability of dropping an attention weight now; 0 outside training."""
        raise NotImplementedError

    def project_query(self, x: Tensor) -> Tensor:
        """The layer's query projection, ``[n, width]`` to ``[heads, n, head_dim]``."""
        raise NotImplementedError

    def project_key(self, x: Tensor) -> Tensor:
        """The layer's key projection, ``[n, width]`` to ``[kv_heads, n, head_dim]``."""
        raise NotImplementedError

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache | None, mask: Any, host: dict[str, Any]
    ) -> AttentionOutput:
        """Mix values by position-aware attention.

        Args:
            q: ``[batch, heads, query, head_dim]``, not rotated; ``k`` and ``v`` likewise, of the new tokens.
            hidden: what they were projected from, ``[batch, query, width]``.
            cache: takes the new keys, if given.
            mask: as transformers made it for the backend in use.
            host: the call's other keywords; handed to the host's own attention function where that computes the call.

        Returns:
            Mixed values ``[batch, query, heads, head_dim]`` and the attention weights, or None.

        Raises:
            BackendCannotCarry: the scheme needs more of the backend than it can do.
            PositionOutOfTable: a position is past the scheme's end.
        """
        scheme, cache, told = scheme_on(self.scheme, q.device), self_attention_cache(cache), host.pop(KEYWORD, None)
        q_length = q.shape[2]
        ctx = context_of(q, cache, self.layer_idx, host.get("position_ids"), told, causal=self.is_causal)
        if self.config._attn_implementation == "sdpa" and is_causal_only(mask, cache, self.layer_idx, told):
            mask = None
        if mask is None and ctx.causal and 1 < q.shape[2] < ctx.key_positions.shape[1]:
            # Prefill of an empty static cache: transformers passes no mask, and nothing is written behind the queries.
            ctx = replace(ctx, key_positions=ctx.key_positions[:, : q.shape[2]])
        ctx = replace(ctx, hidden=hidden, projections=LayerProjections(self), layer=self.layer_idx)
        if paged.takes(scheme, ctx, host):
            return paged.attend(self, q, k, v, ctx, host)
        q, k = scheme.prepare(q, k)
        queries, keys, v = rotated(scheme, q, k, v, ctx)
        del q, k  # memory, where they were turned
        beside = scheme.extra_key_channels(ctx)
        beside = None if beside is None else beside.to(keys[0].dtype)
        if told is not None and told.own_mask:
            mask = mask_of_held(mask, cache, self.layer_idx, q_length)
        elif has_gaps(cache, self.layer_idx) or mask_is_shorter(mask, ctx):
            mask = mask_of_gaps(ctx, self.config._attn_implementation)
        if cache is not None:
            new = pack_keys(keys, beside, cache, self.layer_idx)
            widen(cache, self.layer_idx, new)
            cached, v = cache.update(new, v, self.layer_idx)
            keys, beside = unpack_keys(cached, keys, beside)
        if beside is not None:
            ctx = replace(ctx, carried=beside[:, :, : ctx.key_positions.shape[1]].float())
        terms = scheme.terms(ctx)
        if context_parallel_active() and (scheme.needs_whole_text or not terms.plain or mask is not None):
            refuse_context_parallel(scheme)
        queries, terms = scaled(queries, terms)
        if terms.plain:
            return self._by_host(queries[0], keys[0], v, terms, mask, host)
        keys = copies_of(keys, terms.regions)
        return self._by_engine(queries, keys, v, terms, ctx, mask, host, cache)

    def _by_host(
        self, q: Tensor, k: Tensor, v: Tensor, terms: Terms, mask: Any, host: dict[str, Any]
    ) -> AttentionOutput:
        function = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, type(self).host_eager)
        scaling = self.scaling * terms.logit_scale
        return function(self, q, k, v, mask, dropout=self.live_dropout, scaling=scaling, **host)

    def _by_engine(
        self,
        queries: tuple[Tensor, ...],
        keys: tuple[Tensor, ...],
        v: Tensor,
        terms: Terms,
        ctx: PositionContext,
        mask: Any,
        host: dict,
        cache: Cache | None,
    ) -> AttentionOutput:
        backend = self.config._attn_implementation
        check_keywords(host, mask, ctx, self.scheme.extra_repr())
        if backend == "flex_attention":
            call = AttentionCall(queries, keys, v, terms, ctx, None, self.scaling, self.live_dropout)
            return flex.attend(call, mask).transpose(1, 2), None
        if backend in flash_attn.BACKENDS and (mask is None or mask.ndim == 2):
            refuse_unwritten(cache, self.layer_idx, backend)
            call = AttentionCall(queries, keys, v, terms, ctx, None, self.scaling, self.live_dropout)
            return flash_attn.attend(call, mask).transpose(1, 2), None
        if backend not in ENGINE_BACKENDS or not (mask is None or isinstance(mask, Tensor)):
            raise BackendCannotCarry(
                f"The attention backend {backend!r} cannot compute scheme {self.scheme.extra_repr()!r}. "
                'Use model.set_attn_implementation("sdpa"), "eager" or "flex_attention".'
            )
        seen = ctx.key_positions.shape[1]
        keys, v = tuple(key[:, :, :seen] for key in keys), v[:, :, :seen]
        reread = length_rotation_of(cache, self.layer_idx, rows=queries[0].shape[2])
        call = AttentionCall(queries, keys, v, terms, ctx, mask, self.scaling, self.live_dropout, reread)
        if backend == "eager" or host.get("output_attentions"):
            reference = length_rotation if terms.rows is not None else dense_blocks
            mixed, weights = reference.attend_with_weights(call)
            return mixed.transpose(1, 2), weights
        return dispatch.attend(call).transpose(1, 2), None


ENGINE_BACKENDS = ("eager", "sdpa")


def refuse_unwritten(cache: Cache | None, layer: int | None, backend: str) -> None:
    """Keys of a static cache that nothing was written to yet need a mask, which FlashAttention does not take.

    Raises:
        BackendCannotCarry: the cache is of that kind.
    """
    if cache is not None and not grows(cache, layer):
        raise BackendCannotCarry(
            f"The attention backend {backend!r} would read keys of a static cache that are not written yet. "
            'Use a growing cache (cache_implementation=None), or the backend "sdpa".'
        )


class LayerProjections:
    """A layer's own query and key projections, without the scheme knowing the layer."""

    def __init__(self, attention: PatchedAttention) -> None:
        self.query, self.key = attention.project_query, attention.project_key
