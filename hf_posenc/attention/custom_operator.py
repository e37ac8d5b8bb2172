"""One custom operator for a whole attention call, in a graph that `torch.compile` makes for any length.

The routes run inside the operator. Traced into the graph, their loops over blocks would fix the number of tokens, and
without loops the graph would hold all scores. The operator takes tensors and numbers: a bias that is a function of
distance becomes a table of its values at all distances.
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
from hf_posenc.attention.routes import dense_blocks
from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import Bias, KeyBias, Terms, ToeplitzBias

NO_BOUND = -(1 << 62)
"""Stands for None in the bounds of a band."""


def prepare(call: AttentionCall) -> Compute:
    """The function that computes ``call``: the custom operator in a compiled graph, else that of `dispatch.prepare`."""
    return attend if accepts(call) and dense_blocks.in_one_block(call) else dispatch.prepare(call)


def accepts(call: AttentionCall) -> bool:
    """Whether `torch.compile` traces the call, on the CPU and without gradients, and the operator can express it.

    Exported graphs are excluded, because they must run without this package.
    """
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if compiled and torch._C._are_functorch_transforms_active():  # `torch.func` cannot differentiate the operator
        return False
    return compiled and not torch.is_grad_enabled() and call.values.device.type == "cpu" and carries(call)


def carries(call: AttentionCall) -> bool:
    """Whether tensors and numbers express the call: no bias depends on queries, keys or weights."""
    return (
        call.dropout == 0.0
        and call.softcap is None
        and call.terms.only("bias", "regions", "visible", "row_scale", "sink")
        and all(isinstance(bias, KeyBias) or has_table(bias, call) for bias in call.terms.bias)
    )


def has_table(bias: Bias, call: AttentionCall) -> bool:
    """Whether a bias is a function of distance, and the lengths of the call determine all its distances."""
    return isinstance(bias, ToeplitzBias) and call.ctx.contiguous and not call.terms.split


def attend(call: AttentionCall) -> Tensor:
    """Attention output ``[batch, heads, query, value_dim]``."""
    terms, ctx = call.terms, call.ctx
    key_biases = [bias for bias in terms.bias if isinstance(bias, KeyBias)]
    slopes = [bias.slopes for bias in key_biases if bias.slopes is not None]
    distances = torch.arange(1 - call.query_length, call.key_length, device=ctx.device)
    tables = [bias.of_distance(distances) for bias in terms.bias if isinstance(bias, ToeplitzBias)]
    bands = [terms.visible, *[region.band for region in terms.regions]]
    return operator(
        list(call.queries), list(call.keys), call.values,
        sum_of([bias.values for bias in key_biases]), sum_of(slopes) if len(slopes) == len(key_biases) else None,
        sum_of(tables), terms.row_scale, terms.sink, call.mask,
        ctx.query_positions, ctx.key_positions, ctx.real_keys, ctx.contiguous, ctx.causal,
        [NO_BOUND if number is None else number for band in bands for number in astuple(band)],
        call.scaling, terms.logit_scale,
    )  # fmt: skip


def sum_of(tensors: list[Tensor]) -> Tensor | None:
    """Sum of the tensors, or None for an empty list."""
    return reduce(torch.add, tensors) if tensors else None


@torch.library.custom_op(f"{__name__.partition('.')[0]}::attend", mutates_args=())
def operator(
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Tensor,
    key_bias: Tensor | None,
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
    """Rebuild the call from the tensors and numbers of the graph, and compute it.

    Args:
        key_bias: sum of the key biases, ``[batch or 1, heads, key]``; ``slopes [heads]`` if it is linear.
        table: sum of the distance biases, ``[heads, queries + keys − 1]``, from the smallest distance (the first query
            to the last key) on.
        bands: bounds of the visible band, then of the band of each region; `NO_BOUND` stands for None.
    """
    nearest = 1 - queries[0].shape[2]
    biases: list[Bias] = [] if key_bias is None else [KeyBias(key_bias, slopes)]
    if table is not None:
        biases.append(ToeplitzBias(lambda distance: table[:, distance - nearest]))
    visible, *region_bands = bands_of(bands)
    terms = Terms(
        bias=tuple(biases), row_scale=row_scale, logit_scale=logit_scale, visible=visible, sink=sink,
        regions=tuple(Region(band) for band in region_bands),
    )  # fmt: skip
    ctx = PositionContext(query_positions, key_positions, causal, contiguous, real_keys)
    call = AttentionCall(tuple(queries), tuple(keys), values, terms, ctx, mask, scaling)
    return dispatch.attend(call).contiguous()


@operator.register_fake
def _shape(queries: Sequence[Tensor], keys: Sequence[Tensor], values: Tensor, *rest: object) -> Tensor:
    return values.new_empty((*queries[0].shape[:3], values.shape[-1]))


def bands_of(numbers: Sequence[int]) -> list[Band]:
    """Bands from the concatenated list of their bounds."""
    size = len(fields(Band))
    bounds: list[Any] = [None if number == NO_BOUND else number for number in numbers]
    return [Band(*bounds[start : start + size]) for start in range(0, len(bounds), size)]
