"""A call as one custom operator of a graph that `torch.compile` made for any length: the routes run behind it.

A graph that held their loops over blocks would fix the number of tokens, and one without a loop holds all scores. The
operator is given tensors and numbers: of terms that are functions of a distance, their values at all distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.route import Compute
from hf_posenc.attention.routes import exported
from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import Bias, KeyBias, Terms, ToeplitzBias

NO_BOUND = -(1 << 62)
"""Stands for None in the numbers of a band."""


def prepare(call: AttentionCall) -> Compute:
    """Choose how to compute a call: as one operator of a graph, or by a route, as of `dispatch.prepare`."""
    return attend if accepts(call) and exported.accepts(call) else dispatch.prepare(call)


def accepts(call: AttentionCall) -> bool:
    """Calls that `torch.compile` traces, on the CPU and without gradients, if the operator carries them.

    What is exported must run without this package.
    """
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if compiled and torch._C._are_functorch_transforms_active():  # of `torch.func`, which differentiates no operator
        return False
    return compiled and not torch.is_grad_enabled() and call.values.device.type == "cpu" and carries(call)


def carries(call: AttentionCall) -> bool:
    """Whether a call is tensors and numbers: nothing computes a bias from queries, keys or weights."""
    return (
        call.dropout == 0.0
        and call.softcap is None
        and call.terms.only("bias", "regions", "visible", "row_scale", "sink")
        and all(isinstance(bias, KeyBias) or has_table(bias, call) for bias in call.terms.bias)
    )


def has_table(bias: Bias, call: AttentionCall) -> bool:
    """Whether a bias is one of distances, and those of the call are known by its lengths alone."""
    return isinstance(bias, ToeplitzBias) and call.ctx.contiguous and not call.terms.split


def attend(call: AttentionCall) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    terms, ctx = call.terms, call.ctx
    of_key = [bias for bias in terms.bias if isinstance(bias, KeyBias)]
    slopes = [bias.slopes for bias in of_key if bias.slopes is not None]
    distances = torch.arange(1 - call.query_length, call.key_length, device=ctx.device)
    of_distance = [bias.of_distance(distances) for bias in terms.bias if isinstance(bias, ToeplitzBias)]
    bands = [terms.visible, *[region.band for region in terms.regions]]
    return operator(
        list(call.queries), list(call.keys), call.values,
        total([bias.values for bias in of_key]), total(slopes) if len(slopes) == len(of_key) else None,
        total(of_distance), terms.row_scale, terms.sink, call.mask,
        ctx.query_positions, ctx.key_positions, ctx.real_keys, ctx.contiguous, ctx.causal,
        [NO_BOUND if number is None else number for band in bands for number in astuple(band)],
        call.scaling, terms.logit_scale,
    )  # fmt: skip


def total(parts: list[Tensor]) -> Tensor | None:
    """Their sum; None of nothing."""
    return reduce(torch.add, parts) if parts else None


@torch.library.custom_op(f"{__name__.partition('.')[0]}::attend", mutates_args=())
def operator(
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Tensor,
    of_key: Tensor | None,
    slopes: Tensor | None,
    table: Tensor | None,
    row_scale: Tensor | None,
    sink: Tensor | None,
    mask: Tensor | None,
    query_positions: Tensor,
    key_positions: Tensor,
    real_keys: Tensor | None,
    contiguous: bool,
    causal: bool,
    bands: Sequence[int],
    scaling: float,
    logit_scale: float,
) -> Tensor:
    """The call again, with everything that a graph keeps of it.

    Args:
        of_key: sum of the biases of keys, ``[batch or 1, heads, key]``; ``slopes [heads]`` where it is linear.
        table: sum of the biases of distances, ``[heads, queries + keys − 1]``, from that of the first query to the
            last key.
        bands: numbers of the visible band and of those of the regions, `NO_BOUND` for none.
    """
    nearest = 1 - queries[0].shape[2]
    biases: list[Bias] = [] if of_key is None else [KeyBias(of_key, slopes)]
    if table is not None:
        biases.append(ToeplitzBias(lambda distance: table[:, distance - nearest]))
    visible, *of_regions = bands_of(bands)
    terms = Terms(
        bias=tuple(biases), row_scale=row_scale, logit_scale=logit_scale, visible=visible, sink=sink,
        regions=tuple(Region(band) for band in of_regions),
    )  # fmt: skip
    ctx = PositionContext(query_positions, key_positions, causal, contiguous, real_keys)
    call = AttentionCall(tuple(queries), tuple(keys), values, terms, ctx, mask, scaling)
    return dispatch.attend(call).contiguous()


@operator.register_fake
def _shape(queries: Sequence[Tensor], keys: Sequence[Tensor], values: Tensor, *rest: object) -> Tensor:
    return values.new_empty((*queries[0].shape[:3], values.shape[-1]))


def bands_of(numbers: Sequence[int]) -> list[Band]:
    """Bands from their numbers, one after the other."""
    size = len(fields(Band))
    held: list[Any] = [None if number == NO_BOUND else number for number in numbers]
    return [Band(*held[start : start + size]) for start in range(0, len(held), size)]
