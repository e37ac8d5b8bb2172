"""PyTorch's flex attention: biases are looked up for each pair inside the kernel, without O(query · key) memory.

    score[i, j] = q_i · k_j · scaling − s (i − j) + (c_j − c_i) + t[i − j]

All calls of users who chose it as their backend go here, and structured biases on CUDA
(`hf_posenc.attention.routes.flex_cuda`). Regions and a sink are merged by log-sum-exp. Learned tables and key biases
get their gradients on CUDA; on the CPU flex has no backward pass.
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
from hf_posenc.attention.routes.flex_mask import Mask, mask_of, number
from hf_posenc.core.constants import HALF
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import Bias, BlockBias, KeyBias, Terms, ToeplitzBias
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import BackendCannotCarry

ScoreModification = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def attend(call: AttentionCall, mask: Mask) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``.

    Args:
        call: its own ``mask`` is not used.
        mask: visible pairs, a `BlockMask` or bool ``[batch or 1, 1, query or 1, key]``; None where causality
            (or nothing) is all there is.

    Raises:
        BackendCannotCarry: the call has dropout, a bias or rotation that is no lookup, or gradients on the CPU.
    """
    reason = unable(call)
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
    # A query without visible keys is zero in every partial, and in the result.
    shares = [(lse - total).exp().nan_to_num(0.0)[..., None] for _, lse in parts]
    return sum(out * share for (out, _), share in zip(parts, shares, strict=True)).to(call.values.dtype)


def merges(terms: Terms) -> bool:
    """Whether the log-sum-exp of every region is wanted."""
    return len(terms.regions) > 1 or terms.sink is not None


def unable(call: AttentionCall) -> str | None:
    """Reason why flex attention cannot compute a call; None if it can."""
    reasons: dict[str, Callable[[], bool]] = {
        "a bias that needs queries and keys": lambda: any(isinstance(bias, BlockBias) for bias in call.terms.bias),
        "what position adds to the values": lambda: len(call.terms.values) > 0,
        "a rotation that differs by row": lambda: call.terms.row_rotation is not None,
        "dropout of attention weights": lambda: call.dropout > 0.0,
        "gradients on the CPU": lambda: call.values.device.type == "cpu" and _trained(call),
    }
    for reason, holds in reasons.items():
        if holds():
            return reason
    return None


def _trained(call: AttentionCall) -> bool:
    nowhere = torch.zeros(1, dtype=torch.long, device=call.values.device)
    biases = (b.of_distance(nowhere) if isinstance(b, ToeplitzBias) else b.values for b in call.terms.bias)  # type: ignore[union-attr]
    held = (*call.queries, *call.keys, call.values, *biases)
    return torch.is_grad_enabled() and any(t.requires_grad for t in held)


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
    """Flex attention compiled: left alone, it holds all scores. Under a trace it is compiled with everything else."""
    return flex.flex_attention if is_traced() else _compiled(family)


def family_of(call: AttentionCall, mask: Mask, band: Band, *, with_lse: bool) -> tuple[Hashable, ...]:
    """What needs a kernel of its own: everything but lengths, which one kernel takes all of from the second one on."""
    kinds = frozenset(type(bias) for bias in call.terms.bias), call.terms.row_scale is None, type(mask)
    shape = call.heads, *(call.values.shape[n] for n in (1, 3)), call.values.dtype, call.values.device
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
    """A copy of the function for each family: of one function torch keeps eight graphs, and then holds all scores."""
    one = flex.flex_attention
    copy = FunctionType(one.__code__.replace(), one.__globals__, one.__name__, one.__defaults__, one.__closure__)
    copy.__kwdefaults__ = one.__kwdefaults__
    return torch.compile(copy)


TILE = 128
NO_FLEX_DECODING: dict[str, Any] = {"FORCE_USE_FLEX_ATTENTION": True}

# Torch before 2.9 has `return_lse`, later ones warn of it.
ASK_FOR_LSE: dict[str, Any] = (
    {"return_aux": flex.AuxRequest(lse=True)} if hasattr(flex, "AuxRequest") else {"return_lse": True}
)


def score_of(call: AttentionCall, region: Region) -> ScoreModification | None:
    """The biases of a call as a function of one pair of a region; None where it has none.

    It holds tensors only: a number in it would be compiled anew for every length.
    """
    if not call.terms.bias:
        return None
    batch, device, logit_scale = call.values.shape[0], call.values.device, call.terms.logit_scale
    by_row = call.terms.row_scale
    factor: Any = None if by_row is None else by_row.expand(batch, call.heads, -1)
    linear = [found for found in map(fixed_slopes, call.terms.bias) if found is not None]
    slopes: Any = sum(linear) * logit_scale if linear else None
    of_key = key_bias(call)
    if of_key is not None:
        high, low = of_key
        # What the keys of a row have in common moves no weight; flex cannot differentiate two lookups of one tensor.
        row_high, row_low = high.detach(), low if low is None else low.detach()
    ahead = number(call.first_query, device)
    of_distance = [b for b in call.terms.bias if isinstance(b, ToeplitzBias)]
    if linear or of_distance:
        here, there = region_positions(call, region)
    table: Any = None
    if of_distance:
        reach = reach_of(call, region, here, there)
        distances = torch.arange(-reach, reach + 1, device=device)
        table = sum(b.of_distance(distances).float() for b in of_distance) * logit_scale
        middle = number(reach, device).int()

    def score(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        if slopes is not None:
            score = score - slopes[h] * (here[b, q] - there[b, kv])
        if of_key is not None:
            row = q + ahead
            score = score + (high[b, h, kv] - row_high[b, h, row])
            if low is not None and row_low is not None:
                score = score + (low[b, h, kv] - row_low[b, h, row])
        if table is not None:
            score = score + table[h, here[b, q] - there[b, kv] + middle]
        return score if factor is None else score * factor[b, h, q]

    return score


def fixed_slopes(bias: Bias) -> Tensor | None:
    """Slopes ``[heads]`` of a linear bias of keys, which a kernel multiplies by distances sooner than it looks them up.

    None for another bias, and for slopes that are trained: every pair would add to the gradient of a few numbers.
    """
    slopes = bias.slopes if isinstance(bias, KeyBias) else None
    return None if slopes is None or (torch.is_grad_enabled() and slopes.requires_grad) else slopes


def region_positions(call: AttentionCall, region: Region) -> tuple[Tensor, Tensor]:
    """Positions of queries and keys of a region, ``[batch, query]`` and ``[batch, key]``; integers of 32 bits."""
    batch = call.values.shape[0]
    both = region.query_at(call.ctx.query_positions), region.key_at(call.ctx.key_positions)
    here, there = (x.expand(batch, -1) if x.is_floating_point() else x.int().expand(batch, -1) for x in both)
    return here, there


def reach_of(call: AttentionCall, region: Region, here: Tensor, there: Tensor) -> int:
    """Largest distance between a query and a key of a region, at most."""
    if not region.remaps and call.ctx.contiguous:
        return call.key_length
    return int(torch.maximum(here.max(), there.max()) - torch.minimum(here.min(), there.min()))


def key_bias(call: AttentionCall) -> tuple[Tensor, Tensor | None] | None:
    """Key biases of a call that are not linear, ``[batch, heads, key]``, float32; None where it has none.

    Relative to a fixed position it grows with the sequence length. The second tensor holds the rounding error of the
    first, so that the difference of two near keys stays exact; in half precision queries and keys round to more, and it
    is None.
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
