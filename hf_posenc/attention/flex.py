"""PyTorch's flex attention, for users who chose it: biases are looked up pair by pair inside the kernel.

    score[i, j] = q_i · k_j · scaling + c_j          or + t[i − j]

The mask comes from transformers as a `BlockMask` and stays as it is; a band is put on top of it. Two regions are two
calls merged by log-sum-exp. Learned tables get their gradients on CUDA; on the CPU flex has no backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask

from hf_posenc.attention.call import Call
from hf_posenc.bands import EVERYTHING, Band, Region
from hf_posenc.errors import BackendCannotCarry
from hf_posenc.terms import BlockBias, KeyBias, ToeplitzBias

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def attend(call: Call, mask: BlockMask | None) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``.

    Args:
        call: its own ``mask`` is not read.
        mask: who sees whom, as transformers made it; None where causality (or nothing) is all there is.

    Raises:
        BackendCannotCarry: flex attention cannot compute the call.
    """
    refuse(call)
    regions = call.terms.regions
    if len(regions) == 1:
        return _region(call, 0, mask)
    parts = [_region(call, number, mask, with_lse=True) for number in range(len(regions))]
    total = torch.stack([lse for _, lse in parts]).logsumexp(0)
    # Where a row has no key at all, every part is zero, and so must the answer be.
    shares = [(lse - total).exp().nan_to_num(0.0)[..., None] for _, lse in parts]
    return sum(out * share for (out, _), share in zip(parts, shares, strict=True)).to(call.values.dtype)  # type: ignore[union-attr]


def refuse(call: Call) -> None:
    """Raise for what flex attention cannot compute.

    Raises:
        BackendCannotCarry: dropout, a bias or rotation that is no lookup, training on the CPU.
    """
    reasons: dict[str, Callable[[], bool]] = {
        "a bias that needs queries and keys": lambda: any(isinstance(bias, BlockBias) for bias in call.terms.bias),
        "what position adds to the values": lambda: bool(call.terms.values),
        "a learned sink": lambda: call.terms.sink is not None,
        "a rotation that differs by row": lambda: call.terms.rows is not None,
        "dropout of attention weights": lambda: call.dropout > 0.0,
        "training on the CPU": lambda: call.values.device.type == "cpu" and _trained(call),
    }
    for reason, holds in reasons.items():
        if holds():
            raise BackendCannotCarry(
                f'flex_attention cannot compute {reason}. Use model.set_attn_implementation("sdpa") or "eager".'
            )


def _trained(call: Call) -> bool:
    nowhere = torch.zeros(1, dtype=torch.long, device=call.values.device)
    biases = (b.of_distance(nowhere) if isinstance(b, ToeplitzBias) else b.values for b in call.terms.bias)  # type: ignore[union-attr]
    held = (*call.queries, *call.keys, call.values, *biases)
    return torch.is_grad_enabled() and any(t.requires_grad for t in held)


def _region(call: Call, number: int, mask: BlockMask | None, *, with_lse: bool = False) -> Any:
    region = call.terms.regions[number]
    try:
        result = kernel()(
            call.queries[number],
            call.keys[number],
            call.values,
            score_mod=score_of(call, region),
            block_mask=mask_of(call, mask, region.band),
            scale=call.scaling * call.terms.logit_scale,
            enable_gqa=call.heads != call.values.shape[1],
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
    out, beside = result
    return out, getattr(beside, "lse", beside)


def kernel() -> Any:
    """Flex attention compiled: left alone, it holds all scores. Under a trace it is compiled with everything else."""
    return flex.flex_attention if torch.compiler.is_compiling() else _compiled()


@lru_cache(maxsize=1)
def _compiled() -> Any:
    return torch.compile(flex.flex_attention)


# Torch before 2.9 has `return_lse`, later ones warn of it.
ASK_FOR_LSE: dict[str, Any] = (
    {"return_aux": flex.AuxRequest(lse=True)} if hasattr(flex, "AuxRequest") else {"return_lse": True}
)


def score_of(call: Call, region: Region) -> Score | None:
    """The biases of a call as a function of one pair of a region; None where it has none."""
    by_key = [bias.values for bias in call.terms.bias if isinstance(bias, KeyBias)]
    by_distance = [bias for bias in call.terms.bias if isinstance(bias, ToeplitzBias)]
    by_row = call.terms.row_scale
    if not call.terms.bias:
        return None
    batch, logit_scale = call.values.shape[0], call.terms.logit_scale
    here = region.query_at(call.ctx.query_positions).expand(batch, -1)
    there = region.key_at(call.ctx.key_positions).expand(batch, -1)
    factor: Any = None if by_row is None else by_row.expand(batch, call.heads, -1)
    reach = call.key_length
    if region.remaps or not call.ctx.contiguous:
        reach = int(torch.maximum(here.max(), there.max()) - torch.minimum(here.min(), there.min()))
    distances = torch.arange(-reach, reach + 1, device=here.device)
    of_key: Any = from_newest(sum(by_key)).expand(batch, -1, -1) * logit_scale if by_key else None  # type: ignore[union-attr]
    of_distance: Any = sum(b.of_distance(distances) for b in by_distance) * logit_scale if by_distance else None

    def score(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        if of_key is not None:
            score = score + of_key[b, h, kv]
        if of_distance is not None:
            score = score + of_distance[h, here[b, q] - there[b, kv] + reach]
        return score if factor is None else score * factor[b, h, q]

    return score


def from_newest(values: Any) -> Tensor:
    """A bias of the key counted back from the last one, float32: what lies far back loses digits that do not matter."""
    return (values - values[..., -1:]).float()


def mask_of(call: Call, mask: BlockMask | None, band: Band) -> BlockMask | None:
    """The caller's mask with a window and a band on top of it; made once a forward pass and shared by the layers."""
    bands = tuple(b for b in (call.terms.visible, band) if b != EVERYTHING)
    if mask is None and call.ctx.causal:
        bands = (*bands, Band(0, None))
    if not bands:
        return mask
    return call.ctx.once(("flex mask", bands, id(mask)), lambda: _banded(call, mask, bands))


def _banded(call: Call, mask: BlockMask | None, bands: tuple[Band, ...]) -> BlockMask:
    batch = call.values.shape[0]
    here, there = (p.expand(batch, -1) for p in (call.ctx.query_positions, call.ctx.key_positions))

    def in_band(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return reduce(and_, (band.holds(here[b, q], there[b, kv]) for band in bands))

    both = in_band if mask is None else flex.and_masks(mask.mask_mod, in_band)
    on_cuda = call.values.device.type == "cuda"  # uncompiled, making a mask holds a number for every pair
    return flex.create_block_mask(
        both, batch, None, call.query_length, call.key_length, device=call.values.device, _compile=on_cuda
    )
