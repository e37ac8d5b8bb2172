"""Continuous batching: attention over transformers' paged KV cache, one request at a time.

`generate_batch` packs the new tokens of many requests into one row ``[1, token]``. One paged cache holds the keys and
values of all requests; attention modules get it as ``cache``. Cumulative lengths tell which tokens of the row, and
which of the returned keys, belong to which request. The positions of each request count from 0.

A page has room for one key per token, but regions with their own rotations (ReRoPE, dual chunk attention) and
length-dependent rotations need several. So keys are cached as projected, and rotated when they are read. Values that
do not follow from a token's own key and position (FoX's gates) have no room, and such schemes are refused.

The host's own attention function computes schemes that only rotate or scale. It reads the paged cache itself; from
transformers 5.24 on, it gets the keys and values.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.context import PositionContext
from hf_posenc.core.tracing import is_captured
from hf_posenc.errors import BackendCannotCarry, InvalidInput
from hf_posenc.forward.layer import PatchedLayer
from hf_posenc.forward.rotate_qk import region_rotations, rotate_regions
from hf_posenc.forward.split_terms import SplitTerms
from hf_posenc.schemes.base import Scheme


@dataclass(frozen=True)
class PagedRequest:
    """One request's share of a packed row.

    Attributes:
        rows: its new tokens in the row.
        keys: its keys among the keys that the cache returns; the new ones are last.
        start: position of its first new token.
        memo, key_memo: values that the layers share, for its new tokens and for all its tokens.
    """

    rows: slice
    keys: slice
    start: int
    memo: dict[Hashable, object] = field(default_factory=dict)
    key_memo: dict[Hashable, object] = field(default_factory=dict)


@torch.compiler.disable
def attend(
    layer: PatchedLayer, q: Tensor, k: Tensor, v: Tensor, ctx: PositionContext, host: dict[str, Any]
) -> tuple[Tensor, None]:
    """Compute attention of every request separately.

    Args:
        layer: the attention module.
        q: unrotated queries of all requests, ``[1, heads, token, head_dim]``.
        k: their unrotated keys, ``[1, kv_heads, token, head_dim]``; ``v`` are their values.
        ctx: positions of the packed row, with the values of this layer.
        host: the layer's keywords, including the keywords of continuous batching.

    Returns:
        Mixed values ``[1, token, heads, head_dim]``, zeros at padding; no attention weights.

    Raises:
        BackendCannotCarry: attention weights are requested, or a CUDA graph is being captured.
        InvalidInput: a request's tokens do not follow its cached ones.
    """
    if host.get("output_attentions"):
        raise BackendCannotCarry(
            "Continuous batching does not return attention weights. Call the model itself with output_attentions=True."
        )
    scheme = layer.scheme
    requests = ctx.once("requests", lambda: requests_of(scheme, ctx.query_positions, host))
    keys, values = update_pages(host, k, v, layer.layer_idx)
    q, keys = scheme.prepare(q, keys)
    mixed = q.new_zeros(*q.shape[:3], values.shape[-1])
    for request in requests:
        mixed[:, :, request.rows] = dispatch.attend(_request_call(layer, q, keys, values, ctx, request))
    return mixed.transpose(1, 2), None


def requests_of(scheme: Scheme, positions: Tensor, host: Mapping[str, Any]) -> list[PagedRequest]:
    """The requests of a packed row, without padding. Waits for the device once per forward pass.

    Args:
        scheme: named in the error.
        positions: of the packed tokens, ``[1, token]``.
        host: the layer's keywords, including the keywords of continuous batching.

    Raises:
        BackendCannotCarry: a CUDA graph is being captured; it would replay the lengths of this batch.
        InvalidInput: a request's tokens do not follow its cached ones.
    """
    if is_captured(positions):
        raise graphs_error(scheme)
    rows, keys = host["cu_seq_lens_q"], host["cu_seq_lens_k"]
    keys = keys["full_attention"] if isinstance(keys, Mapping) else keys
    starts = positions[0, rows[:-1].long().clamp(max=positions.shape[1] - 1)]
    borders = (rows[:-1], rows[1:], keys[:-1], keys[1:], starts)
    requests = []
    for row, row_end, key, key_end, start in torch.stack([border.long() for border in borders], dim=1).tolist():
        if row == row_end or key == key_end:  # padding to a fixed batch size
            continue
        cached = (key_end - key) - (row_end - row)
        if start != cached:
            raise InvalidInput(
                f"A request of a continuous batch goes on at position {start} after {cached} cached tokens. "
                "Let generate_batch number the tokens."
            )
        requests.append(PagedRequest(slice(row, row_end), slice(key, key_end), start))
    return requests


def graphs_error(scheme: Scheme) -> BackendCannotCarry:
    """Error for a continuous batch that would be replayed as a CUDA graph."""
    return BackendCannotCarry(
        f"Scheme {scheme.shown_name!r} computes each request of a continuous batch by its own length, which CUDA "
        "graphs cannot replay. Pass ContinuousBatchingConfig(use_cuda_graph=False)."
    )


def update_pages(host: Mapping[str, Any], k: Tensor, v: Tensor, layer: int | None) -> tuple[Tensor, Tensor]:
    """Write new keys and values ``[1, kv_heads, token, head_dim]``, and return the packed ones of all requests."""
    cache = host["cache"]
    if "kwargs" in inspect.signature(cache.update).parameters:  # `update` changes them
        return cache.update(key_states=k, value_states=v, layer_idx=layer, kwargs=dict(host))
    indices = {name: host[name] for name in ("read_index", "write_index")}  # transformers 5.4
    keys, values = cache.update(key_states=k, value_states=v, layer_idx=layer, **indices)
    return keys.transpose(0, 1)[None], values.transpose(0, 1)[None]


def _request_call(
    layer: PatchedLayer, q: Tensor, keys: Tensor, values: Tensor, ctx: PositionContext, request: PagedRequest
) -> AttentionCall:
    """Call of the engine for one request."""
    scheme, rows = layer.scheme, request.rows
    q, keys, values = q[:, :, rows], keys[:, :, request.keys], values[:, :, request.keys]
    positions = torch.arange(keys.shape[2], device=q.device)[None]
    query_ctx = replace(
        ctx, query_positions=positions[:, request.start :], key_positions=positions, contiguous=True, real_keys=None,
        memo=request.memo, first=request.start, hidden=None if ctx.hidden is None else ctx.hidden[:, rows],
    )  # fmt: skip
    key_ctx = replace(query_ctx, query_positions=positions, memo=request.key_memo, first=0, hidden=None)
    queries, copies, values = rotate_regions(region_rotations(scheme, query_ctx, key_ctx), q, keys, values)
    split, scaling = SplitTerms.of(scheme.terms(query_ctx)), getattr(layer, layer.score_factor)
    queries, by_region = split.scaled(queries), split.keys_by_region(copies)
    return AttentionCall(queries, by_region, values, split.terms, query_ctx, None, scaling, layer.live_dropout)
