"""Choose what computes a call: the host's own attention function, or the engine, by attention backend.

On a CPU a decode query with grouped heads goes another way than the host's: transformers asks torch for grouped heads,
which takes up to twice as long in float32, and five times in bfloat16. There heads that share a key head are its rows.

Under context parallelism each process holds a part of every sequence, and torch replaces its attention by ring
attention, which takes queries, keys and values alone: schemes that need more than rotations and scales are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hf_posenc.attention import custom_operator, dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_attn
from hf_posenc.attention.routes import dense_blocks, flex, length_rotation
from hf_posenc.cache.key_layout import grows
from hf_posenc.core.context import PositionContext
from hf_posenc.core.grouped_heads import attend_packed
from hf_posenc.core.regions import Band
from hf_posenc.core.terms import Terms
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import BackendCannotCarry
from hf_posenc.schemes.base import Scheme, implements

if TYPE_CHECKING:
    from transformers import Cache


AttentionOutput = tuple[Tensor, Tensor | None]
ComputeCall = Callable[[AttentionCall], AttentionOutput]

ENGINE_BACKENDS = ("eager", "sdpa")
PACKAGES = flash_attn.BACKENDS  # which get no mask but that of padding
ENGINE_HOOKS = ("bias", "values", "visible", "row_rotation", "sink")


def engine_for(
    call: AttentionCall, backend: str, scheme: str, cache: Cache | None, layer: int | None, *, weights: bool
) -> ComputeCall:
    """A function from calls like ``call`` to mixed values ``[batch, query, heads, head_dim]`` and weights, or None.

    Args:
        call: of one layer; others have the same terms, positions, mask, shapes and dtypes.
        backend: name of the attention implementation.
        scheme: its name, for messages.
        cache: of self-attention; ``layer`` is an index in it.
        weights: whether attention weights are asked for.

    Raises:
        BackendCannotCarry: the backend cannot compute the call.
    """
    mask: Any = call.mask
    by_routes = backend == "sdpa" and not weights and (mask is None or isinstance(mask, Tensor))
    if call.at_read and not (by_routes and dispatch.rotates_at_read(call)):
        as_if_rotated = replace(call, at_read=())  # of the keys only shapes are looked at
        whole = engine_for(as_if_rotated, backend, scheme, cache, layer, weights=weights)
        return lambda one: whole(one.with_rotated_keys())
    if call.softcap is not None and backend not in ENGINE_BACKENDS:
        raise BackendCannotCarry(
            f"This model bounds its attention scores, which scheme {scheme!r} does not compute under {backend!r}. "
            'Use model.set_attn_implementation("eager") or "sdpa".'
        )
    if backend == "flex_attention":
        return partial(_by_package, flex.attend, mask)
    if backend in flash_attn.BACKENDS and (mask is None or mask.ndim == 2):
        refuse_unwritten(cache, layer, backend)
        return partial(_by_package, flash_attn.attend, mask)
    if backend not in ENGINE_BACKENDS or not (mask is None or isinstance(mask, Tensor)):
        raise BackendCannotCarry(
            f"The attention backend {backend!r} cannot compute scheme {scheme!r}. "
            'Use model.set_attn_implementation("sdpa"), "eager" or "flex_attention".'
        )
    seen = call.ctx.key_positions.shape[1]
    # A static cache has room behind the newest key. With gradients, views fix the order in which regions add theirs.
    trim = call.key_length != seen or torch.is_grad_enabled()
    if backend == "eager" or weights:
        reference: Callable[[AttentionCall], tuple[Tensor, Tensor]] = length_rotation.attend_with_weights
        if call.terms.row_rotation is None:
            reference = dense_blocks.prepare_with_weights(trimmed(call, seen) if trim else call)
        compute: ComputeCall = partial(_with_weights, reference)
    else:
        prepared = custom_operator.prepare(trimmed(call, seen) if trim else call)
        compute = lambda one: (prepared(one).transpose(1, 2), None)  # noqa: E731
    return (lambda one: compute(trimmed(one, seen))) if trim else compute


def within_window(terms: Terms, window: int | None) -> Terms:
    """Terms that hide what is outside a layer's own window, for packages whose masks say nothing of it.

    transformers refuses texts longer than a chunk there.

    Args:
        terms: of the scheme.
        window: as the layer hands it to its attention function: a query's own key and those before it, or on either
            side of it, that it sees at most.
    """
    return terms if window is None else replace(terms, visible=terms.visible & Band(1 - window, window))


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


def trimmed(call: AttentionCall, seen: int) -> AttentionCall:
    """The call with its first ``seen`` keys only."""
    return replace(call, keys=tuple(key[:, :, :seen] for key in call.keys), values=call.values[:, :, :seen])


def _with_weights(reference: Callable[[AttentionCall], tuple[Tensor, Tensor]], call: AttentionCall) -> AttentionOutput:
    mixed, weights = reference(call)
    return mixed.transpose(1, 2), weights


def _by_package(attend: Callable[[AttentionCall, Any], Tensor], mask: Any, call: AttentionCall) -> AttentionOutput:
    return attend(replace(call, mask=None), mask).transpose(1, 2), None


HostAttention = Callable[..., tuple[Tensor, Tensor | None]]


def for_queries(function: HostAttention, query: Tensor, key: Tensor, value: Tensor, backend: str) -> HostAttention:
    """The function for calls like one: that of the host, or a quicker one with the same result.

    Args:
        function: of the attention backend; one that somebody registered in the place of transformers' own is used.
        query: ``[batch, heads, query, head_dim]``.
        key: ``[batch, kv_heads, key, head_dim]``.
        value: ``[batch, kv_heads, key, value_dim]``.
        backend: its name.
    """
    by_kernel = query.shape[2] > 1 and value.device.type == "cpu"  # CUDA has kernels for narrower values
    if value.shape[3] < key.shape[3] and (by_kernel or backend in PACKAGES):
        return partial(as_wide_as_keys, function)
    quicker = query.shape[2] == 1 and query.shape[1] != key.shape[1] and query.device.type == "cpu"
    if quicker and function is sdpa_attention_forward and not is_traced():
        return partial(attend_or, function)
    return function


def as_wide_as_keys(
    function: HostAttention, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **host: Any
) -> tuple[Tensor, Tensor | None]:
    """Attend with values that zeros widen: fused kernels take no narrower ones, and without them scores are kept."""
    width = value.shape[3]
    wide = functional.pad(value, (0, key.shape[3] - width))
    mixed, weights = function(module, query, key, wide, mask, **host)
    return mixed[..., :width], weights


def attend_or(
    function: HostAttention,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout: float,
    scaling: float,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **host: Any,
) -> tuple[Tensor, Tensor | None]:
    """Mixed values ``[batch, 1, heads, value_dim]``; by ``function`` where no heads are shared, or with more terms."""
    more = position_bias is not None or softcap is not None or "cu_seq_lens_q" in host  # of continuous batches
    if query.shape[1] == key.shape[1] or more:
        given = {"dropout": dropout, "scaling": scaling, "position_bias": position_bias, "softcap": softcap}
        return function(module, query, key, value, mask, **given, **host)
    return attend_packed(query, key, value, mask, scale=scaling, dropout=dropout).transpose(1, 2), None


def context_parallel_active() -> bool:
    """Whether this call sees only a part of each text."""
    function = functional.scaled_dot_product_attention  # torch's own is a builtin
    return isinstance(function, FunctionType) and function.__module__.startswith("torch.distributed.")


def refuse_context_parallel(scheme: Scheme) -> None:
    """Refuse a scheme that needs whole sequences.

    Raises:
        BackendCannotCarry: always.
    """
    raise BackendCannotCarry(
        f"Scheme {scheme.shown_name!r} needs whole texts, and under context parallelism a process holds parts. "
        'Choose a scheme that only rotates, such as "yarn", or another kind of parallelism.'
    )


def check_context_parallel(scheme: Scheme, terms: Terms, mask: Any) -> None:
    """Refuse terms that need whole texts where a process holds parts of them.

    Raises:
        BackendCannotCarry: context parallelism is active, and the terms need more than a token's own position.
    """
    if context_parallel_active() and (scheme.needs_whole_text or not terms.scales_only or mask is not None):
        refuse_context_parallel(scheme)


def computed_in_parts(scheme: Scheme) -> bool:
    """Whether context parallelism can compute a scheme, of which `check_context_parallel` is sure in each call."""
    return not (needs_engine(scheme) or scheme.needs_whole_text or implements(scheme, "reposition"))


def needs_engine(scheme: Scheme, ctx: PositionContext | None = None) -> bool:
    """Whether a scheme asks more of attention than scales and rotations, which the host's own function carries.

    Args:
        scheme: of a layer.
        ctx: of the call; one token of a decoder by default.
    """
    if ctx is None:
        token = torch.zeros(1, 1, dtype=torch.long)
        ctx = PositionContext(token, token, causal=True, contiguous=True)
    return any(implements(scheme, hook) for hook in ENGINE_HOOKS) or not Terms(regions=scheme.regions(ctx)).scales_only


def batched_by_engine(scheme: Scheme, ctx: PositionContext | None = None) -> bool:
    """Whether the engine computes a scheme's continuous batches, whose pages have room for keys of the usual width."""
    return scheme.key_width != scheme.geometry.head_dim or needs_engine(scheme, ctx)
