"""Continuous batching: attention over transformers' paged KV cache, one request at a time.

`generate_batch` packs the new tokens of many requests into one row ``[1, token]``. The keys and values of all requests
lie in one paged cache, which attention modules get as ``cache``; cumulative lengths say which rows, and
which of the keys read back, belong to which request. A request's positions run from 0 on.

Keys are cached as projected and rotated when they are read, because a page has room for one key a token: regions with
rotations of their own (ReRoPE, dual chunk attention) and rotations that change with the length need several. What
cannot be derived from a token's own key and position (FoX's gates) has no room at all and is refused.

Schemes that only rotate or scale are computed by the host's own attention function, which reads the paged cache itself
or, from transformers 5.24 on, gets what was read (`for_host`).
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
from hf_posenc.forward.host_calls import MODULES_FILL_PAGES
from hf_posenc.forward.layer import PatchedLayer
from hf_posenc.forward.rotate_qk import copies_of, rotated, scaled
from hf_posenc.schemes.base import Scheme

NO_GRAPHS = "Scheme {} computes each request of a continuous batch by its own length, which CUDA graphs cannot replay."
GRAPHS_OFF = "Pass ContinuousBatchingConfig(use_cuda_graph=False)."


@dataclass(frozen=True)
class PagedRequest:
    """One request's share of a packed row.

    Attributes:
        rows: its new tokens in the row.
        keys: its keys among those the cache returns, the new ones last.
        start: position of its first new token.
        memo, memo_of_keys: values shared by the layers, of the new tokens and of all its tokens.
    """

    rows: slice
    keys: slice
    start: int
    memo: dict[Hashable, object] = field(default_factory=dict)
    memo_of_keys: dict[Hashable, object] = field(default_factory=dict)


@torch.compiler.disable
def attend(
    layer: PatchedLayer, q: Tensor, k: Tensor, v: Tensor, ctx: PositionContext, host: dict[str, Any]
) -> tuple[Tensor, None]:
    """Mix values by position-aware attention, each request by itself.

    Args:
        layer: the attention module.
        q: ``[1, heads, token, head_dim]`` of all requests, not rotated; ``k`` and ``v`` likewise.
        ctx: positions of the packed row, and what the layer reads.
        host: the layer's keywords, with those of continuous batching.

    Returns:
        Mixed values ``[1, token, heads, head_dim]``, zeros at padding; weights are not kept.

    Raises:
        BackendCannotCarry: attention weights are asked for, or a CUDA graph is being captured.
        InvalidInput: a request's tokens do not follow its cached ones.
    """
    if host.get("output_attentions"):
        raise BackendCannotCarry(
            "Continuous batching does not return attention weights. Call the model itself with output_attentions=True."
        )
    scheme = layer.scheme
    requests = ctx.once("requests", lambda: requests_of(scheme, ctx.query_positions, host))
    keys, values = write_and_read(host, k, v, layer.layer_idx)
    q, keys = scheme.prepare(q, keys)
    mixed = q.new_zeros(*q.shape[:3], values.shape[-1])
    for request in requests:
        of_request = _call_of(layer, q, keys, values, ctx, request)
        mixed[:, :, request.rows] = dispatch.attend(of_request)
    return mixed.transpose(1, 2), None


def requests_of(scheme: Scheme, positions: Tensor, host: Mapping[str, Any]) -> list[PagedRequest]:
    """The requests of a packed row, without those that are padding. Waits for the device once a forward pass.

    Args:
        scheme: named in the error.
        positions: of the packed tokens, ``[1, token]``.
        host: the layer's keywords, with those of continuous batching.

    Raises:
        BackendCannotCarry: a CUDA graph is being captured, which would replay the lengths of this batch.
        InvalidInput: a request's tokens do not follow its cached ones.
    """
    if is_captured(positions):
        raise BackendCannotCarry(f"{NO_GRAPHS.format(repr(scheme.shown_name))} {GRAPHS_OFF}")
    rows, keys = host["cu_seq_lens_q"], host["cu_seq_lens_k"]
    keys = keys["full_attention"] if isinstance(keys, Mapping) else keys
    starts = positions[0, rows[:-1].long().clamp(max=positions.shape[1] - 1)]
    borders = (rows[:-1], rows[1:], keys[:-1], keys[1:], starts)
    requests = []
    for row, row_end, key, key_end, start in torch.stack([border.long() for border in borders], dim=1).tolist():
        if row == row_end or key == key_end:  # there to give batches one size
            continue
        if start != (key_end - key) - (row_end - row):
            raise InvalidInput(
                f"A request of a continuous batch goes on at position {start} after "
                f"{(key_end - key) - (row_end - row)} cached tokens. Let generate_batch number the tokens."
            )
        requests.append(PagedRequest(slice(row, row_end), slice(key, key_end), start))
    return requests


def write_and_read(host: Mapping[str, Any], k: Tensor, v: Tensor, layer: int | None) -> tuple[Tensor, Tensor]:
    """Write new keys and values ``[1, kv_heads, token, head_dim]``; all keys and values of the requests, packed."""
    cache = host["cache"]
    if "kwargs" in inspect.signature(cache.update).parameters:  # which it changes
        return cache.update(key_states=k, value_states=v, layer_idx=layer, kwargs=dict(host))
    where = {name: host[name] for name in ("read_index", "write_index")}  # transformers 5.4
    keys, values = cache.update(key_states=k, value_states=v, layer_idx=layer, **where)
    return keys.transpose(0, 1)[None], values.transpose(0, 1)[None]


def for_host(host: dict[str, Any], k: Tensor, v: Tensor, layer: int | None) -> tuple[Tensor, Tensor]:
    """Keys and values as the host's own attention function takes them beside a paged cache.

    All of the requests, where attention modules write to the pages; else the new ones, which the function writes.
    """
    if not MODULES_FILL_PAGES:
        return k, v
    return host.pop("cache").update(key_states=k, value_states=v, layer_idx=layer, kwargs=host)


def _call_of(
    layer: PatchedLayer, q: Tensor, keys: Tensor, values: Tensor, ctx: PositionContext, request: PagedRequest
) -> AttentionCall:
    """The attention of one request, as the engine takes it."""
    scheme, rows = layer.scheme, request.rows
    q, keys, values = q[:, :, rows], keys[:, :, request.keys], values[:, :, request.keys]
    places = torch.arange(keys.shape[2], device=q.device)[None]
    here = replace(
        ctx, query_positions=places[:, request.start :], key_positions=places, contiguous=True, real_keys=None,
        memo=request.memo, first=request.start, hidden=None if ctx.hidden is None else ctx.hidden[:, rows],
    )  # fmt: skip
    whole = replace(here, query_positions=places, memo=request.memo_of_keys, first=0, hidden=None)
    queries, copies, values = rotated(scheme, q, keys, values, here, whole)
    queries, terms = scaled(queries, scheme.terms(here))
    copies, scaling = copies_of(copies, terms.regions), getattr(layer, layer.score_factor)
    return AttentionCall(queries, copies, values, terms, here, None, scaling, layer.live_dropout)
