"""Attention by the package flash-attn, for users who chose it as their backend: linear biases and windows.

    score[i, j] = q_i · k_j · scaling − m_h |i − j|,     −left ≤ j − i ≤ right

All other terms are refused. Slopes get no gradient, and need version 2 of the package.

Dao 2023, "FlashAttention-2", arXiv:2307.08691; `flash_attn.flash_attn_func`.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from hf_posenc.attention.call import AttentionCall, causal_band
from hf_posenc.core.regions import Band
from hf_posenc.core.terms import BlockBias
from hf_posenc.errors import BackendCannotCarry

BACKENDS = ("flash_attention_2",)


def attend(call: AttentionCall, real: Tensor | None) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``.

    Args:
        call: the attention call; its ``mask`` is ignored.
        real: True for keys that are not padding, ``[batch, key]``; None if there is no padding.

    Raises:
        BackendCannotCarry: the package is not installed, or cannot compute the call.
    """
    reason = refusal_reason(call, real)
    if reason is not None:
        raise BackendCannotCarry(
            f'flash_attention_2 cannot compute {reason}. Use model.set_attn_implementation("sdpa") or "flex_attention".'
        )
    settings = {
        "dropout_p": call.dropout,
        "softmax_scale": call.scale,
        "causal": call.ctx.causal,
        "window_size": window_of(causal_band(call.terms.visible, call.ctx.causal)),
        "alibi_slopes": slopes_of(call),
    }
    query, key, value = (x.transpose(1, 2) for x in (call.queries[0], call.keys[0], call.values))
    if real is None:
        return package_function("flash_attn_func")(query, key, value, **settings).transpose(1, 2)
    return unpadded(query, key, value, real, settings).transpose(1, 2)


def refusal_reason(call: AttentionCall, real: Tensor | None) -> str | None:
    """Reason why the package cannot compute a call; None if it can."""
    terms = call.terms
    slopes = [None if isinstance(bias, BlockBias) else bias.slopes for bias in terms.bias]
    if not terms.only("bias", "visible"):
        return "more than a linear bias and a window"
    if any(s is None for s in slopes):
        return "a bias that is not linear in distance"
    if torch.is_grad_enabled() and any(s is not None and s.requires_grad for s in slopes):
        return "slopes that are being trained"
    if terms.visible != Band(terms.visible.nearest, terms.visible.farthest):
        return "a window of chunks or of some rows only"
    if (terms.visible.nearest or 0) > 0:
        return "a window that hides a row's own key"
    if real is None and not in_order(call):
        return "a linear bias or a window of texts packed into one row"
    if package_function("flash_attn_func") is None:
        return "this without the package flash-attn, which is not installed"
    return None


def in_order(call: AttentionCall) -> bool:
    """Whether key positions are consecutive and the queries are the last of them; earlier keys may be evicted."""
    if call.ctx.contiguous:
        return True
    keys, queries = call.ctx.key_positions, call.ctx.query_positions
    newest = keys[:, -queries.shape[1] :]
    return bool((keys.diff(dim=-1) == 1).all()) and bool((queries == newest).all())


def slopes_of(call: AttentionCall) -> Tensor | None:
    """Sum of the slopes of all linear biases, float32 ``[heads]``; None without a bias."""
    if not call.terms.bias:
        return None
    total: Tensor = sum(b.slopes for b in call.terms.bias)  # type: ignore[union-attr, misc, assignment]
    return (total * call.terms.logit_scale).float().contiguous()


def window_of(band: Band) -> tuple[int, int]:
    """Numbers of visible keys to the left and to the right of a query's own key; −1 for no bound."""
    left = -1 if band.farthest is None else band.farthest - 1
    right = -1 if band.nearest is None else -band.nearest
    return left, right


def package_function(name: str) -> Any:
    """A function of the installed package; None if the package does not have it or is not installed."""
    try:
        return getattr(importlib.import_module("flash_attn"), name, None)
    except ImportError:
        return None


def unpadded(query: Tensor, key: Tensor, value: Tensor, real: Tensor, settings: dict[str, Any]) -> Tensor:
    """Attention output ``[batch, query, heads, value_dim]`` of the unpadded tokens; zeros at padding."""
    key, value, real = key[:, : real.shape[1]], value[:, : real.shape[1]], real.bool()
    rows = real[:, real.shape[1] - query.shape[1] :]
    (ends_q, longest_q), (ends_k, longest_k) = cumulative_lengths(rows), cumulative_lengths(real)
    packed = package_function("flash_attn_varlen_func")(
        query[rows], key[real], value[real], ends_q, ends_k, longest_q, longest_k, **settings
    )
    out = query.new_zeros(*query.shape[:-1], value.shape[-1])
    return out.masked_scatter(rows[..., None, None], packed)


def cumulative_lengths(real: Tensor) -> tuple[Tensor, int]:
    """Cumulative lengths of the sequences without padding, int32, starting with 0; and the longest length."""
    lengths = real.sum(-1, dtype=torch.int32)
    return pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)), int(lengths.max())
