"""PyTorch's flex attention: the kernel looks up biases for each pair, without O(query · key) memory.

    score[i, j] = q_i · k_j · scaling − s (i − j) + (c_j − c_i) + t[i − j]

It computes all calls of users who chose it as their backend, and structured biases on CUDA
(`hf_posenc.attention.routes.flex_cuda`). Regions and a sink are merged by log-sum-exp. Learned tables and key biases
get gradients on CUDA; on the CPU flex attention has no backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes.flex_mask import Mask, mask_of, scalar
from hf_posenc.core.constants import HALF
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import Bias, BlockBias, KeyBias, Terms, ToeplitzBias
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import BackendCannotCarry

ScoreModification = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def attend(call: AttentionCall, mask: Mask) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``.

    Args:
        call: the attention call; its ``mask`` is ignored.
        mask: visible pairs, a `BlockMask` or bool ``[batch or 1, 1, query or 1, key]``; None if at most causality
            hides pairs.

    Raises:
        BackendCannotCarry: the call has dropout, a bias or rotation that is no lookup, or gradients on the CPU.
    """
    reason = refusal_reason(call)
    if reason is not None:
        raise BackendCannotCarry(
            f'flex_attention cannot compute {reason}. Use model.set_attn_implementation("sdpa") or "eager".'
        )
    regions, sink = call.terms.regions, call.terms.sink
    if not merges(call.terms):
        return _region(call, 0, mask)
    parts = [_region(call, number, mask, with_lse=True) for number in range(len(regions))]
    total = torch.stack([lse for _, lse in parts]).logsumexp(0)
    total = total if sink is None else torch.logaddexp(total, sink.float()[None, :, None])
    # A query without visible keys has output 0 in every partial, and in the result.
    shares = [(lse - total).exp().nan_to_num(0.0)[..., None] for _, lse in parts]
    return sum(out * share for (out, _), share in zip(parts, shares, strict=True)).to(call.values.dtype)


def merges(terms: Terms) -> bool:
    """Whether outputs are merged, which needs the log-sum-exp of every region."""
    return len(terms.regions) > 1 or terms.sink is not None


def refusal_reason(call: AttentionCall) -> str | None:
    """Reason why flex attention cannot compute a call; None if it can."""
    if any(isinstance(bias, BlockBias) for bias in call.terms.bias):
        return "a bias that needs queries and keys"
    if len(call.terms.values) > 0:
        return "a positional term of the values"
    if call.terms.row_rotation is not None:
        return "a rotation that differs by row"
    if call.dropout > 0.0:
        return "dropout of attention weights"
    if call.values.device.type == "cpu" and _needs_gradients(call):
        return "gradients on the CPU"
    return None


def _needs_gradients(call: AttentionCall) -> bool:
    zero = torch.zeros(1, dtype=torch.long, device=call.values.device)
    biases = (b.of_distance(zero) if isinstance(b, ToeplitzBias) else b.values for b in call.terms.bias)  # type: ignore[union-attr]
    tensors = (*call.queries, *call.keys, call.values, *biases)
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _region(call: AttentionCall, number: int, mask: Mask, *, with_lse: bool = False) -> Any:
    region = call.terms.regions[number]
    try:
        result = kernel(family_of(call, mask, region.band, with_lse=with_lse))(
            call.queries[number],
            call.keys[number],
            call.values,
            score_mod=score_of(call, region),
            block_mask=mask_of(call, mask, region.band),
            scale=call.scale,
            enable_gqa=call.heads != call.values.shape[1],
            kernel_options=NO_FLEX_DECODING if overflows_flex_decoding(call) else None,
            **(ASK_FOR_LSE if with_lse else {}),
        )
    except RuntimeError as error:
        if call.values.device.type != "cpu":
            raise
        # Its generated C++ does not compile for every shape, and a compiled call cannot return the log-sum-exp.
        raise BackendCannotCarry(
            'flex_attention failed on the CPU. Use model.set_attn_implementation("sdpa") or "eager".'
        ) from error
    if not with_lse:
        return result
    out, log_sum_exp = result
    return out, getattr(log_sum_exp, "lse", log_sum_exp)


def kernel(family: tuple[Hashable, ...]) -> Any:
    """Compiled flex attention; uncompiled, it would hold all scores. A trace compiles it with the rest of the model."""
    return flex.flex_attention if is_traced() else _compiled(family)


def family_of(call: AttentionCall, mask: Mask, band: Band, *, with_lse: bool) -> tuple[Hashable, ...]:
    """Everything that needs a kernel of its own. Lengths do not: from the second length on, one kernel serves all."""
    kinds = frozenset(type(bias) for bias in call.terms.bias), call.terms.row_scale is None, type(mask)
    _, kv_heads, _, value_dim = call.values.shape
    shape = call.heads, kv_heads, value_dim, call.values.dtype, call.values.device
    row = call.query_length == 1
    return kinds, band, call.terms.visible, with_lse, row, overflows_flex_decoding(call), shape, torch.is_grad_enabled()


def overflows_flex_decoding(call: AttentionCall) -> bool:
    """Whether a call under grouped-query attention has too many queries for torch's flex decoding kernel.

    Torch takes that kernel below `TILE` queries. It puts the queries of all heads of a group into one tile, and torch
    2.11 to 2.13 cannot compile it for more than `TILE` of them.
    """
    group = call.heads // call.values.shape[1]
    return call.values.device.type != "cpu" and group > 1 and call.query_length * group > TILE


@lru_cache(maxsize=64)
def _compiled(family: tuple[Hashable, ...]) -> Any:
    """A compiled copy of the function per family: torch keeps eight graphs per function, and then runs uncompiled."""
    func = flex.flex_attention
    copy = FunctionType(func.__code__.replace(), func.__globals__, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return torch.compile(copy)


TILE = 128
NO_FLEX_DECODING: dict[str, Any] = {"FORCE_USE_FLEX_ATTENTION": True}

# Torch before 2.9 has `return_lse`; later versions warn about it.
ASK_FOR_LSE: dict[str, Any] = (
    {"return_aux": flex.AuxRequest(lse=True)} if hasattr(flex, "AuxRequest") else {"return_lse": True}
)


def score_of(call: AttentionCall, region: Region) -> ScoreModification | None:
    """The biases of a call as a function of one pair of a region; None without biases.

    The function captures tensors only: a captured number would be compiled anew for every length.
    """
    if not call.terms.bias:
        return None
    batch, device, logit_scale = call.values.shape[0], call.values.device, call.terms.logit_scale
    by_row = call.terms.row_scale
    factor: Any = None if by_row is None else by_row.expand(batch, call.heads, -1)
    linear = [fixed for fixed in map(fixed_slopes, call.terms.bias) if fixed is not None]
    slopes: Any = sum(linear) * logit_scale if linear else None
    key_values = key_bias(call)
    if key_values is not None:
        high, low = key_values
        # A term shared by all keys of a row changes no weight, so it needs no gradient. Flex attention cannot
        # differentiate two lookups of one tensor.
        row_high, row_low = high.detach(), low if low is None else low.detach()
    first_query = scalar(call.first_query, device)
    distance_biases = [b for b in call.terms.bias if isinstance(b, ToeplitzBias)]
    if linear or distance_biases:
        query_positions, key_positions = region_positions(call, region)
    table: Any = None
    if distance_biases:
        longest = longest_distance(call, region, query_positions, key_positions)
        distances = torch.arange(-longest, longest + 1, device=device)
        table = sum(b.of_distance(distances).float() for b in distance_biases) * logit_scale
        middle = scalar(longest, device).int()

    def score(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        if slopes is not None:
            score = score - slopes[h] * (query_positions[b, q] - key_positions[b, kv])
        if key_values is not None:
            row = q + first_query
            score = score + (high[b, h, kv] - row_high[b, h, row])
            if low is not None and row_low is not None:
                score = score + (low[b, h, kv] - row_low[b, h, row])
        if table is not None:
            score = score + table[h, query_positions[b, q] - key_positions[b, kv] + middle]
        return score if factor is None else score * factor[b, h, q]

    return score


def fixed_slopes(bias: Bias) -> Tensor | None:
    """Slopes ``[heads]`` of a linear key bias. A kernel multiplies them by distances faster than it looks up biases.

    None for another bias, and for trained slopes: every pair would add to the gradient of a few numbers.
    """
    slopes = bias.slopes if isinstance(bias, KeyBias) else None
    return None if slopes is None or (torch.is_grad_enabled() and slopes.requires_grad) else slopes


def region_positions(call: AttentionCall, region: Region) -> tuple[Tensor, Tensor]:
    """Positions of queries ``[batch, query]`` and keys ``[batch, key]`` in a region; whole numbers as int32."""
    batch = call.values.shape[0]
    both = region.query_at(call.ctx.query_positions), region.key_at(call.ctx.key_positions)
    queries, keys = (x.expand(batch, -1) if x.is_floating_point() else x.int().expand(batch, -1) for x in both)
    return queries, keys


def longest_distance(call: AttentionCall, region: Region, queries: Tensor, keys: Tensor) -> int:
    """Upper bound of the distance between a query and a key of a region, from their positions."""
    if not region.remaps and call.ctx.contiguous:
        return call.key_length
    return int(torch.maximum(queries.max(), keys.max()) - torch.minimum(queries.min(), keys.min()))


def key_bias(call: AttentionCall) -> tuple[Tensor, Tensor | None] | None:
    """Sum of the key biases of a call that are not linear, ``[batch, heads, key]``, float32; None without any.

    The bias is relative to a fixed position, so it grows with the sequence length. The second tensor holds the rounding
    error of the first, and keeps the difference of two near keys exact. It is None in half precision, where queries and
    keys have larger rounding errors.
    """
    biases = [bias.values for bias in call.terms.bias if isinstance(bias, KeyBias) and fixed_slopes(bias) is None]
    if not biases:
        return None
    exact = sum(biases) * call.terms.logit_scale
    exact = exact.expand(call.values.shape[0], -1, -1)  # type: ignore[union-attr]
    high = exact.float()
    if call.values.dtype in HALF:
        return high.contiguous(), None
    return high.contiguous(), (exact - high).float().contiguous()
