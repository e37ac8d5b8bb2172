"""Naive decoding of schemes that move keys to other positions, as in published code.

Keys are cached unrotated, and at every step all of them are rotated to their positions in the regions: O(keys)
rotations for one token. Other schemes have no such form; their keys are cached rotated in the naive variant too.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.cache.provenance import self_attention_cache
from hf_posenc.core.context import PositionContext
from hf_posenc.forward.attention import AttentionOutput, PatchedAttention
from hf_posenc.forward.call_plan import CallPlan, plan_of
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.forward.host_calls import take_cache
from hf_posenc.forward.rotate_qk import copies_of, rotated, scaled
from hf_posenc.schemes.base import Scheme, implements


class Rerotating(PatchedAttention):
    """Mixin for a patched attention class: its cache holds unrotated keys."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        hidden: Tensor,
        mask: Any,
        host: dict[str, Any],
        cache: Any = None,
        plan: CallPlan | None = None,
    ) -> AttentionOutput:
        """See `PatchedAttention.attend`."""
        scheme, cache = self.scheme, self_attention_cache(take_cache(host) if cache is None else cache)
        plan = replace(plan or plan_of(self, q, cache, mask, host), shared=None, at_read=None)
        ctx = self._context(plan, hidden, cache)
        q, k = scheme.prepare(q, k)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        queries, _, _ = rotated(scheme, q, q[:, :0], q[:, :0], ctx)
        _, keys, v = rotated(scheme, k[:, :0], k, v, at_keys(ctx))
        queries, terms = scaled(queries, scheme.terms(ctx))
        return self._by_engine(queries, copies_of(keys, terms.regions), v, terms, ctx, plan, host, None)


def at_keys(ctx: PositionContext) -> PositionContext:
    """The context in which all keys are rotated; layers share its tables."""
    memo: dict[Hashable, object] = ctx.once("all keys", dict)
    return replace(ctx, query_positions=ctx.key_positions, memo=memo, first=None)


def rerotate(base: nn.Module) -> None:
    """Make the layers of a patched model whose keys are moved decode naively."""
    for attention in base.__dict__[ATTENTIONS]:
        if moves_keys(attention.scheme):
            attention.__class__ = naive_class(type(attention))  # type: ignore[arg-type]


def moves_keys(scheme: Scheme) -> bool:
    """Whether regions move keys to other positions, and nothing else is cached or evicted."""
    here = torch.zeros(1, 1, dtype=torch.long)
    regions = scheme.regions(PositionContext(here, here, causal=True, contiguous=True))
    return (
        any(region.remaps for region in regions)
        and not implements(scheme, "extra_key_channels")
        and scheme.kept_keys is None
    )


@lru_cache(maxsize=16)
def naive_class(cls: type[nn.Module]) -> type[nn.Module]:
    """A patched attention class with `Rerotating` in front of it."""
    return type(f"Rerotating{cls.__name__}", (Rerotating, cls), {})
