"""Two regions: a near band and everything beyond it, merged by log-sum-exp. No pair is computed twice.

    o = (e^lse_near o_near + e^lse_far o_far) / (e^lse_near + e^lse_far)

The far part {i − j ≥ w} is itself a causal square: queries w … against keys 0 … L − w. The gradient is exact when each
part's own backward pass is given the merged output and log-sum-exp (the identity of ring attention, arXiv:2310.01889).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention import flash_cpu
from hf_posenc.attention.banded import blocks_of_band
from hf_posenc.attention.call import Call
from hf_posenc.terms import EVERYTHING, Band


def accepts(call: Call) -> bool:
    """A causal square on the CPU, or a decoding row, with a near and a far region and nothing else."""
    terms = call.terms
    return (
        (call.triangle or (call.last_row and not torch.is_grad_enabled()))
        and call.ctx.causal
        and split_of(terms.bands) is not None
        and len(terms.bias) == 0
        and terms.rows is None
        and terms.visible == EVERYTHING
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def attend(call: Call) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    width = split_of(call.terms.bands)
    scale = call.scaling * call.terms.logit_scale
    near, far = call.queries
    if call.last_row and call.key_length > 1:
        return _last_row(near, far, call, width or 0, scale)
    return NearAndFar.apply(near, far, *call.keys, call.values, width, scale)


def split_of(bands: tuple[Band, ...]) -> int | None:
    """The width w of the pair ``(… w), (w …)``; None for any other set of bands."""
    if len(bands) != 2:
        return None
    near, far = bands
    return near.farthest if near.nearest is None and far.farthest is None and near.farthest == far.nearest else None


def _last_row(near: Tensor, far: Tensor, call: Call, width: int, scale: float) -> Tensor:
    edge = max(0, call.key_length - width)
    (near_keys, far_keys), values = call.keys, call.values
    out, lse = flash_cpu.attend(near, near_keys[:, :, edge:], values[:, :, edge:], causal=False, mask=None, scale=scale)
    if edge == 0:
        return out
    beyond, beyond_lse = flash_cpu.attend(
        far, far_keys[:, :, :edge], values[:, :, :edge], causal=False, mask=None, scale=scale
    )
    return _merged(out, lse, beyond, beyond_lse)[0]


def _merged(one: Tensor, one_lse: Tensor, two: Tensor, two_lse: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(one_lse, two_lse)
    weight_one, weight_two = (one_lse - lse).exp()[..., None], (two_lse - lse).exp()[..., None]
    return (one * weight_one + two * weight_two).to(one.dtype), lse


class NearAndFar(torch.autograd.Function):
    """Forward merges the parts, backward runs each part's own backward with the merged result."""

    @staticmethod
    def forward(
        ctx: Any,
        near: Tensor,
        far: Tensor,
        near_keys: Tensor,
        far_keys: Tensor,
        values: Tensor,
        width: int,
        scale: float,
    ) -> Tensor:
        """Mixed values; keeps what the backward pass reads."""
        length = near.shape[2]
        parts = [
            flash_cpu.attend(
                near[:, :, rows], near_keys[:, :, seen], values[:, :, seen], causal=mask is None, mask=mask, scale=scale
            )
            for rows, seen, mask in _near_blocks(near, width)
        ]
        out = torch.cat([part for part, _ in parts], dim=2)
        lse = torch.cat([part for _, part in parts], dim=2)
        if length > width:
            beyond, beyond_lse = flash_cpu.attend(
                far[:, :, width:],
                far_keys[:, :, : length - width],
                values[:, :, : length - width],
                causal=True,
                mask=None,
                scale=scale,
            )
            out[:, :, width:], lse[:, :, width:] = _merged(out[:, :, width:], lse[:, :, width:], beyond, beyond_lse)
        ctx.save_for_backward(near, far, near_keys, far_keys, values, out, lse)
        ctx.width, ctx.scale = width, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensors that `forward` was given."""
        near, far, near_keys, far_keys, values, out, lse = ctx.saved_tensors
        width, scale, length = ctx.width, ctx.scale, near.shape[2]
        d_near, d_far = torch.zeros_like(near), torch.zeros_like(far)
        d_near_keys, d_far_keys, d_values = (torch.zeros_like(t) for t in (near_keys, far_keys, values))
        for rows, seen, mask in _near_blocks(near, width):
            dq, dk, dv = flash_cpu.gradient(
                grad[:, :, rows], near[:, :, rows], near_keys[:, :, seen], values[:, :, seen],
                out[:, :, rows], lse[:, :, rows], causal=mask is None, mask=mask, scale=scale,
            )  # fmt: skip
            d_near[:, :, rows] = dq
            d_near_keys[:, :, seen] += dk
            d_values[:, :, seen] += dv
        if length > width:
            late, early = slice(width, None), slice(0, length - width)
            dq, dk, dv = flash_cpu.gradient(
                grad[:, :, late], far[:, :, late], far_keys[:, :, early], values[:, :, early],
                out[:, :, late], lse[:, :, late], causal=True, mask=None, scale=scale,
            )  # fmt: skip
            d_far[:, :, late] = dq
            d_far_keys[:, :, early] += dk
            d_values[:, :, early] += dv
        return d_near, d_far, d_near_keys, d_far_keys, d_values, None, None


def _near_blocks(query: Tensor, width: int) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """The near band in blocks; masks are float32, as the kernel adds them, and None is a causal square."""
    length = query.shape[2]
    hidden = torch.finfo(torch.float32).min
    before, added = None, None
    for rows, seen, mask in blocks_of_band(Band(0, width), length, length, query.device):
        if mask is not None and mask is not before:
            before, added = mask, torch.zeros(mask.shape).masked_fill(~mask, hidden)[None, None]
        yield rows, seen, added
