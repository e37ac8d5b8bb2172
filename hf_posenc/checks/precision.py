"""Check of rounding: attention loses no more digits than torch does where it is written out in the same numbers.

An absolute tolerance for bfloat16 would have to be wide enough for the worst text; the yardstick of flash attention's
own tests is relative: error(model, float64) ≤ 1.5 · error(written out, float64), on the very queries, keys and values.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case, position_limit
from hf_posenc.checks.definition import forward_at
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import positions_from, random_tokens
from hf_posenc.checks.reference_attention import (
    ReferenceTerms,
    attentions,
    mix,
    reference_terms,
    replaced,
)
from hf_posenc.checks.registry import register_check
from hf_posenc.core.terms import KeyBias, ToeplitzBias
from hf_posenc.patches.attention import AttentionOutput, PatchedAttention

STARTS = (0, 7_000)  # and where bfloat16 knows every 32nd position only
FLOOR = 0.25  # of one rounding of the largest value: an error below it is none


@register_check("precision", company=True, costly=True)
def rounds_as_torch(pair: Case, dtype: torch.dtype = torch.bfloat16) -> Deviation:
    """The error of every layer's attention over that of the same written out in torch, both against float64.

    A contract model is cast to ``dtype``; a live one is measured in the type it has.
    """
    low = copy.copy(pair)
    low.dtype = dtype if isinstance(pair.model, str) else pair.dtype
    with low.patched() as model:
        length, end = low.length(2 * low.trained + 6, model), position_limit(model)
        tokens = random_tokens(model, length)
        found = [(0.0, "no layer")]
        for start in STARTS:
            if start == 0 or end is None:
                found += [(value, f"{layer} of a text at {start}") for value, layer in errors(model, tokens, start)]
    return pair.gap("precision", *max(found))


def tables(said: ReferenceTerms) -> list[Tensor]:
    """What a scheme adds and multiplies with, as tensors: at least float32, whatever the model's type."""
    terms = said.terms
    scales = [x for x in (terms.query_scale, terms.row_scale) if x is not None]
    keys = [bias.values for bias in terms.bias if isinstance(bias, KeyBias)]
    near = said.ctx.query_positions[0]
    return [*scales, *keys, *(bias.of_distance(near) for bias in terms.bias if isinstance(bias, ToeplitzBias))]


def errors(model: PreTrainedModel, tokens: Tensor, start: int) -> list[tuple[float, str]]:
    """Error of each layer, in errors of torch, on one text that begins at ``start``."""
    found: list[tuple[float, str]] = []

    def attend(
        own: Any, layer: PatchedAttention, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, **call: Any
    ) -> AttentionOutput:
        mixed, weights = own(q, k, v, hidden=hidden, **call)
        said = reference_terms(layer, stand, hidden)
        narrow = [str(x.dtype) for x in tables(said) if x.dtype in (torch.bfloat16, torch.float16)]
        found.extend((math.inf, f"terms in {dtype} of layer {layer.layer_idx}") for dtype in narrow)
        exact = mix(said, q, k, v)
        written = mix(said, q, k, v, q.dtype).double()
        floor = FLOOR * torch.finfo(q.dtype).eps * max(float(exact.abs().max()), 1e-3)
        error, usual = (float((x - exact).pow(2).mean().sqrt()) for x in (mixed.transpose(1, 2).double(), written))
        found.append((error / max(usual, floor), f"layer {layer.layer_idx}"))
        return mixed, weights

    layers = attentions(model)
    stand = layers[0].scheme.reposition(positions_from(model, tokens.shape[1], start), training=False)
    with replaced(layers, attend):
        forward_at(model, tokens, start)
    return found
