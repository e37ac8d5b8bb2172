"""Choose the function that computes a call, by attention backend: the host's own attention function or the engine.

For decode queries with grouped heads, transformers asks torch for grouped heads (``enable_gqa``). On a CPU this takes
up to twice as long in float32, and five times in bfloat16. Here query heads that share a key head become its rows.

Under context parallelism each process holds a part of every sequence, and torch replaces its attention by ring
attention. Ring attention takes only queries, keys and values: schemes that do more than rotate and scale are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hf_posenc.attention import custom_operator, dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_attn
from hf_posenc.attention.route import Compute
from hf_posenc.attention.routes import dense_blocks, flex, length_rotation
from hf_posenc.core.context import PositionContext
from hf_posenc.core.grouped_heads import attend_packed
from hf_posenc.core.terms import Terms
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import BackendCannotCarry
from hf_posenc.schemes.base import Scheme, implements

AttentionOutput = tuple[Tensor, Tensor | None]
ComputeCall = Callable[[AttentionCall], AttentionOutput]

ENGINE_BACKENDS = ("eager", "sdpa")
FLASH_BACKENDS = flash_attn.BACKENDS  # they take no mask except one of padding
ENGINE_HOOKS = ("bias", "values", "visible", "row_rotation", "sink")


def engine_for(call: AttentionCall, backend: str, scheme: Scheme, *, weights: bool) -> ComputeCall:
    """Function from calls like ``call`` to attention output ``[batch, query, heads, head_dim]`` and weights (or None).

    Args:
        call: call of one layer; later calls have the same terms, positions, mask, shapes and dtypes.
        backend: name of the attention implementation.
        scheme: named in messages.
        weights: whether attention weights are requested.

    Raises:
        BackendCannotCarry: the backend cannot compute the call.
    """
    mask: Any = call.mask
    by_routes = backend == "sdpa" and not weights and (mask is None or isinstance(mask, Tensor))
    if call.at_read and not (by_routes and dispatch.rotates_keys_at_read(call)):
        # Preparation reads only shapes of keys.
        compute_rotated = engine_for(replace(call, at_read=()), backend, scheme, weights=weights)
        return lambda unrotated: compute_rotated(unrotated.with_rotated_keys())
    if call.softcap is not None and backend not in ENGINE_BACKENDS:
        raise BackendCannotCarry(
            f"This model bounds its attention scores, which scheme {scheme.shown_name!r} does not "
            f'support under {backend!r}. Use model.set_attn_implementation("eager") or "sdpa".'
        )
    if backend == "flex_attention":
        return partial(_by_kernel, flex.attend, mask)
    if backend in FLASH_BACKENDS and (mask is None or mask.ndim == 2):
        return partial(_by_kernel, flash_attn.attend, mask)
    if backend not in ENGINE_BACKENDS or not (mask is None or isinstance(mask, Tensor)):
        raise BackendCannotCarry(
            f"The attention backend {backend!r} cannot compute scheme {scheme.shown_name!r}. "
            'Use model.set_attn_implementation("sdpa"), "eager" or "flex_attention".'
        )
    seen = call.ctx.key_positions.shape[1]
    # A static cache has unwritten places. With gradients, views fix the order in which regions add their gradients.
    trim = call.key_length != seen or torch.is_grad_enabled()
    example = with_first_keys(call, seen) if trim else call
    if backend == "sdpa" and not weights:
        compute: ComputeCall = partial(_by_route, custom_operator.prepare(example))
    elif call.terms.row_rotation is None:
        compute = partial(_with_weights, dense_blocks.prepare_with_weights(example))
    else:
        compute = partial(_with_weights, length_rotation.attend_with_weights)
    return (lambda untrimmed: compute(with_first_keys(untrimmed, seen))) if trim else compute


def with_first_keys(call: AttentionCall, seen: int) -> AttentionCall:
    """The call with its first ``seen`` keys and values only."""
    return replace(call, keys=tuple(key[:, :, :seen] for key in call.keys), values=call.values[:, :, :seen])


def _by_route(attend: Compute, call: AttentionCall) -> AttentionOutput:
    """Mixed values ``[batch, query, heads, head_dim]``."""
    return attend(call).transpose(1, 2), None


def _with_weights(reference: Callable[[AttentionCall], tuple[Tensor, Tensor]], call: AttentionCall) -> AttentionOutput:
    """Mixed values ``[batch, query, heads, head_dim]`` and attention weights."""
    mixed, weights = reference(call)
    return mixed.transpose(1, 2), weights


def _by_kernel(attend: Callable[[AttentionCall, Any], Tensor], mask: Any, call: AttentionCall) -> AttentionOutput:
    """Mixed values ``[batch, query, heads, head_dim]``; the mask is a separate argument of the kernel."""
    return attend(replace(call, mask=None), mask).transpose(1, 2), None


HostAttention = Callable[..., AttentionOutput]


def host_function(function: HostAttention, query: Tensor, key: Tensor, value: Tensor, backend: str) -> HostAttention:
    """Attention function for calls like this one: the host's own, or a faster one with the same result.

    Args:
        function: attention function of the backend. One that replaces transformers' own is always used.
        query: ``[batch, heads, query, head_dim]``.
        key: ``[batch, kv_heads, key, head_dim]``.
        value: ``[batch, kv_heads, key, value_dim]``.
        backend: name of the attention implementation.
    """
    by_kernel = query.shape[2] > 1 and value.device.type == "cpu"  # CUDA has kernels for narrower values
    if value.shape[3] < key.shape[3] and (by_kernel or backend in FLASH_BACKENDS):
        return partial(attend_with_widened_values, function)
    grouped_decode = query.shape[2] == 1 and query.shape[1] != key.shape[1] and query.device.type == "cpu"
    if grouped_decode and function is sdpa_attention_forward and not is_traced():
        return partial(attend_decode_query, function)
    return function


def attend_with_widened_values(
    function: HostAttention, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **host: Any
) -> AttentionOutput:
    """Attend with values that are padded to the width of the keys, as fused kernels require."""
    width = value.shape[3]
    wide = functional.pad(value, (0, key.shape[3] - width))
    mixed, weights = function(module, query, key, wide, mask, **host)
    return mixed[..., :width], weights


def attend_decode_query(
    function: HostAttention, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **host: Any
) -> AttentionOutput:
    """Attend with one grouped query, ``[batch, 1, heads, value_dim]``; other calls go to the host's ``function``."""
    changes_scores = host.get("position_bias") is not None or host.get("softcap") is not None
    batched = "cu_seq_lens_q" in host  # continuous batching
    if query.shape[1] == key.shape[1] or changes_scores or batched:
        return function(module, query, key, value, mask, **host)
    mixed = attend_packed(query, key, value, mask, scale=host["scaling"], dropout=host["dropout"])
    return mixed.transpose(1, 2), None


def context_parallel_active() -> bool:
    """Whether context parallelism is active, so that this process holds only a part of each text."""
    function = functional.scaled_dot_product_attention  # a builtin unless torch has replaced it
    return isinstance(function, FunctionType) and function.__module__.startswith("torch.distributed.")


def refuse_context_parallel(scheme: Scheme) -> None:
    """Raise `BackendCannotCarry` for a scheme that needs whole texts."""
    raise BackendCannotCarry(
        f"Scheme {scheme.shown_name!r} needs whole texts, but under context parallelism a process holds parts. "
        'Choose a scheme that only rotates, such as "yarn", or another kind of parallelism.'
    )


def check_context_parallel(scheme: Scheme, terms: Terms, mask: Any) -> None:
    """Raise `BackendCannotCarry` under context parallelism for terms that need more than each token's own position."""
    if context_parallel_active() and (scheme.needs_whole_text or not terms.scales_only or mask is not None):
        refuse_context_parallel(scheme)


def supports_context_parallel(scheme: Scheme) -> bool:
    """Whether context parallelism can compute a scheme; `check_context_parallel` checks every call."""
    return not (needs_engine(scheme) or scheme.needs_whole_text or implements(scheme, "reposition"))


def needs_engine(scheme: Scheme, ctx: PositionContext | None = None) -> bool:
    """Whether a scheme does more than scale and rotate, so that the host's own attention function cannot compute it.

    Args:
        scheme: scheme of a layer.
        ctx: positions of the call; by default one token of a decoder.
    """
    if ctx is None:
        token = torch.zeros(1, 1, dtype=torch.long)
        ctx = PositionContext(token, token, causal=True, contiguous=True)
    return any(implements(scheme, hook) for hook in ENGINE_HOOKS) or not Terms(regions=scheme.regions(ctx)).scales_only


def batched_by_engine(scheme: Scheme, ctx: PositionContext | None = None) -> bool:
    """Whether the engine computes continuous batches of a scheme; pages hold keys of the model's width only."""
    return scheme.key_width != scheme.geometry.head_dim or needs_engine(scheme, ctx)
