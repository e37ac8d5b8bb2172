"""Check of precision: attention has no larger rounding errors than the same formula in torch in the same dtype.

An absolute tolerance for bfloat16 would have to be wide enough for the worst text. As in the tests of FlashAttention,
the tolerance is relative: error(model, float64) ≤ 1.5 · error(torch, float64), on the same queries, keys and values.

A scheme computes content biases in float32, even for the float64 reference. If torch's result used the same biases, it
would lack their rounding errors, which in a float32 model are as large as its own. Its biases are therefore computed
from operands with one more random rounding (Parker 1997, "Monte Carlo Arithmetic").
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case, position_limit
from hf_posenc.checks.forward import positions_from, random_tokens
from hf_posenc.checks.reference_model import forward_from, patched_layers, replace_attend
from hf_posenc.checks.registry import Measured, located, register_check, worst
from hf_posenc.core.terms import Bias, Block, BlockBias, KeyBias, ToeplitzBias
from hf_posenc.forward.attention import PatchedAttention
from hf_posenc.forward.engine_backend import AttentionOutput
from hf_posenc.patching.reference_attention import ReferenceTerms, attention_output, reference_terms

STARTS = (0, 7_000)  # near 7,000, consecutive bfloat16 numbers are 32 apart
FLOOR = 0.25  # smallest torch error that counts, in units of one rounding of the largest output


@register_check("precision", needs=("is_deterministic",), slow=True)
def rounding_matches_torch(case: Case, dtype: torch.dtype = torch.bfloat16) -> Measured:
    """RMS error of every layer's attention divided by the error of the formula in torch, both against float64.

    A tiny model is cast to ``dtype``; a loaded model is measured in its own dtype.
    """
    cast = copy.copy(case)
    cast.dtype = dtype if isinstance(case.model, str) else case.dtype
    with cast.patched() as model:
        tokens = random_tokens(model, cast.clip_length(2 * cast.trained_length + 6, model))
        errors = [(0.0, "no layer")]
        starts = STARTS if position_limit(model) is None else (0,)
        for start in starts:
            errors += [located(error, f"at position {start}") for error in layer_errors(model, tokens, start)]
    return worst(errors)


def term_tensors(ref: ReferenceTerms) -> list[Tensor]:
    """Scales and biases of a scheme, which must be at least float32 for every dtype of the model."""
    terms = ref.terms
    scales = [x for x in (terms.query_scale, terms.row_scale) if x is not None]
    keys = [bias.values for bias in terms.bias if isinstance(bias, KeyBias)]
    distances = ref.ctx.query_positions[0]
    return [*scales, *keys, *(bias.of_distance(distances) for bias in terms.bias if isinstance(bias, ToeplitzBias))]


def with_own_rounding(ref: ReferenceTerms) -> ReferenceTerms:
    """The terms with content biases whose rounding errors are independent of those in ``ref``."""
    generator = torch.Generator().manual_seed(0)

    def rounded(x: Tensor) -> Tensor:
        noise = torch.rand(x.shape, generator=generator).to(x.device) - 0.5
        return x * (1 + torch.finfo(torch.float32).eps * noise)

    def from_rounded(bias: Bias) -> Bias:
        if not isinstance(bias, BlockBias):
            return bias

        def of_block(block: Block) -> Tensor:
            query, key, scores = (rounded(x) for x in (block.query, block.key, block.scores))
            return bias.of_block(replace(block, query=query, key=key, scores=scores))

        return replace(bias, of_block=of_block)

    return replace(ref, terms=replace(ref.terms, bias=tuple(map(from_rounded, ref.terms.bias))))


def layer_errors(model: PreTrainedModel, tokens: Tensor, start: int) -> list[tuple[float, str]]:
    """Error of each layer relative to torch's, for one text from position ``start`` on, with the layer."""
    errors: list[tuple[float, str]] = []

    def attend(
        own: Any, layer: PatchedAttention, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, **call: Any
    ) -> AttentionOutput:
        output, weights = own(q, k, v, hidden=hidden, **call)
        ref = reference_terms(layer, layer.scheme, positions, hidden, call["host"])
        narrow = [str(x.dtype) for x in term_tensors(ref) if x.dtype in (torch.bfloat16, torch.float16)]
        errors.extend((math.inf, f"terms in {dtype} of layer {layer.layer_idx}") for dtype in narrow)
        exact = attention_output(ref, q, k, v)
        in_dtype = attention_output(with_own_rounding(ref), q, k, v, q.dtype).double()
        floor = FLOOR * torch.finfo(q.dtype).eps * max(float(exact.abs().max()), 1e-3)
        own_output = output.transpose(1, 2).double()
        error, torch_error = (float((x - exact).pow(2).mean().sqrt()) for x in (own_output, in_dtype))
        errors.append((error / max(torch_error, floor), f"layer {layer.layer_idx}"))
        return output, weights

    layers = patched_layers(model)
    positions = layers[0].scheme.reposition(positions_from(model, tokens.shape[1], start), training=False)
    with replace_attend(layers, attend):
        forward_from(model, tokens, start)
    return errors
