"""Checks of shifts: outputs at shifted positions agree with the scheme's claim and with its formula.

The terms of a scheme determine its claim: only distances matter, absolute positions matter, or neither. Rotations and
biases of distance (`ToeplitzBias`) claim that only distances matter. Remapped positions and bands claim the same if
they are equal for a shifted text. Embeddings and position tables claim that absolute positions matter. Scales and
content biases claim neither.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case, position_limit
from hf_posenc.checks.forward import attention_backend, max_deviation, random_tokens
from hf_posenc.checks.reference_model import (
    forward_from,
    patched_layers,
    reference_logits,
    reference_outputs,
    replace_attend,
)
from hf_posenc.checks.registry import Measured, located, register_check, worst
from hf_posenc.checks.tolerances import EFFECT_FACTOR, NOISE_FLOOR
from hf_posenc.core.terms import BlockBias, KeyBias
from hf_posenc.forward.attention import PatchedAttention
from hf_posenc.forward.engine_backend import AttentionOutput
from hf_posenc.patching.reference_attention import ReferenceTerms, in_band
from hf_posenc.schemes.base import implements

Claim = Literal["distance", "position"] | None
TOLERANCE = 1e-4  # largest difference in positions between equal terms of a text and the shifted text
MIN_LOG_WEIGHT = math.log(1e-6)  # smaller attention weights are zeros or rounding errors


@register_check("shift", needs=("is_deterministic",), slow=True)
def shifted_positions_match_claim(case: Case) -> Measured:
    """Outputs of a shifted text equal the unshifted ones if the scheme claims that only distances matter.

    Otherwise they equal the formula at the shifted positions; and they must differ from the unshifted outputs if the
    scheme claims that absolute positions matter. See `hf_posenc.checks.shift`.
    """
    with case.patched() as model:
        tokens = random_tokens(model, shiftable_length(case, model))
        claim, starts = claim_and_shifts(case, model, tokens)
        unshifted = forward_from(model, tokens, 0)
        measured = [located(shift_deviation(model, tokens, unshifted, n, claim), f"shifted by {n}") for n in starts]
        if claim == "position":
            measured += [located(missing_effect(model, tokens, unshifted, n), f"shifted by {n}") for n in starts]
    return worst(measured or [(0.0, "no token, no position is left")])


@register_check("distance", needs=("is_deterministic",), slow=True)
def equal_distances_score_equally(case: Case) -> Measured:
    """In a text of one repeated token, first-layer log-odds of adjacent keys depend on their distance alone.

    Applies to schemes that claim it. The value is the largest spread along a diagonal of the attention matrix.
    """
    with case.patched() as model:
        tokens = random_tokens(model, 1).expand(1, shiftable_length(case, model))
        if claim_and_shifts(case, model, tokens)[0] != "distance":
            return 0.0, "no token: the scheme does not claim that only distances matter"
        with attention_backend(model, "eager"):
            weights = first_layer_weights(model, tokens)
    if weights is None:
        return 0.0, "no token: the model's own attention returns no weights"
    value, distance = _largest_spread(weights[0].double().log(), causal=case.causal)
    return value, f"distance {distance}"


def shiftable_length(case: Case, model: PreTrainedModel) -> int:
    """Length of a text that can be shifted without leaving the scheme's positions."""
    end = position_limit(model)
    return case.trained_length + 6 if end is None else min(case.trained_length + 6, max(1, end // 2))


def claim_and_shifts(case: Case, model: PreTrainedModel, tokens: Tensor) -> tuple[Claim, list[int]]:
    """The scheme's claim, and the start positions it was derived from: small enough for exact arithmetic."""
    end = position_limit(model)
    last = 4 * case.trained_length + 3 if end is None else end - tokens.shape[1]
    starts = [start for start in sorted({1, 17, last}) if 0 < start <= last]
    if not starts:
        return None, starts
    terms = [reference_outputs(model, tokens, start)[1] for start in (0, *starts)]
    return claim_of(*terms), starts


def shift_deviation(
    model: PreTrainedModel, tokens: Tensor, unshifted: Tensor, start: int, claim: Claim
) -> tuple[float, str]:
    """Deviation of a shifted text from the unshifted one or, unless only distances matter, from the formula."""
    shifted = forward_from(model, tokens, start)
    expected = unshifted if claim == "distance" else reference_logits(model, tokens, start)
    value, where = max_deviation(shifted, expected)
    return (math.inf, f"NaN at {where}") if math.isnan(value) else (value, where)


def missing_effect(model: PreTrainedModel, tokens: Tensor, unshifted: Tensor, start: int) -> tuple[float, str]:
    """Infinity if shifting a text has no effect, although the scheme claims that positions matter."""
    moved = max_deviation(forward_from(model, tokens, start), unshifted)[0]
    if moved > EFFECT_FACTOR * NOISE_FLOOR:
        return 0.0, "no token"
    return math.inf, "no token: absolute positions have no effect"


def first_layer_weights(model: PreTrainedModel, tokens: Tensor) -> Tensor | None:
    """Attention weights of the first layer, ``[row, heads, token, token]``; None if its attention returns none.

    Recorded in ``attend``: for ``output_attentions`` transformers would leave hooks on the model.
    """
    recorded: list[Tensor | None] = []

    def attend(own: Any, layer: PatchedAttention, *call: Any, host: dict[str, Any], **keywords: Any) -> AttentionOutput:
        # Models with a single backend return weights only on this request.
        output, weights = own(*call, host={**host, "output_attentions": True}, **keywords)
        recorded.append(weights)
        return output, weights

    with replace_attend(patched_layers(model), attend):
        forward_from(model, tokens, 0)
    return recorded[0]


def _largest_spread(logits: Tensor, *, causal: bool) -> tuple[float, int]:
    """Largest spread, along a diagonal, of the differences between adjacent keys; and the diagonal's distance.

    Args:
        logits: ``[heads, token, token]``.
        causal: ignore keys after the query.
    """
    steps = logits.masked_fill(logits < MIN_LOG_WEIGHT, math.nan).diff(dim=-1)
    worst = (0.0, 0)
    for distance in range(1 if causal else 2 - steps.shape[1], steps.shape[1]):
        line = steps.diagonal(-distance, -2, -1)
        spread = line.nan_to_num(nan=-math.inf).amax(-1) - line.nan_to_num(nan=math.inf).amin(-1)
        worst = max(worst, (float(spread.clamp(min=0.0).max()), distance))
    return worst


def claim_of(unshifted: list[ReferenceTerms], *shifted: list[ReferenceTerms]) -> Claim:
    """Claim of a model's scheme, from the terms of all layers for one text at several offsets; None for neither."""
    if any(implements(one.scheme, "embed") or _reads_table(one) for one in unshifted):
        vanishing = any(getattr(part, "may_vanish", False) for part in unshifted[0].scheme.schemes)
        return None if vanishing else "position"
    distance_only = (
        _same_up_to_shift(one, two) for terms in shifted for one, two in zip(unshifted, terms, strict=True)
    )
    return "distance" if all(distance_only) else None


def _reads_table(ref: ReferenceTerms) -> bool:
    scheme = ref.scheme
    return scheme.geometry.table is not None and (scheme.keeps_table or not scheme.replaces_host)


def _same_up_to_shift(one: ReferenceTerms, two: ReferenceTerms) -> bool:
    rotation = one.scheme.rotation()
    if one.terms.row_rotation is not None or (rotation is not None and rotation.axes is not None):
        return False
    if implements(one.scheme, "query_scale") or implements(one.scheme, "row_scale"):
        return False  # piecewise constant scales may be equal at the tried offsets
    if any(isinstance(bias, BlockBias) for bias in one.terms.bias) or one.terms.values:
        return False
    return all(_equal(x, y) for x, y in zip(_position_tensors(one), _position_tensors(two), strict=True))


def _position_tensors(ref: ReferenceTerms) -> list[Tensor]:
    """All tensors of the terms that depend on positions: equal for two offsets if only distances matter."""
    terms, ctx = ref.terms, ref.ctx
    query, key = ctx.query_positions[:, :, None], ctx.key_positions[:, None, :]
    ordered = query >= key if ctx.causal else torch.ones_like(query - key, dtype=torch.bool)
    rotation = ref.scheme.rotation()
    decays = rotation is not None and bool(rotation.decay)
    tensors = [in_band(terms.visible, query, key) & ordered]
    for region in terms.regions:
        band = in_band(region.band, query, key) & ordered
        distance = region.query_at(query) - region.key_at(key)
        decay_steps = region.query_decay_steps(query) + region.key_decay_steps(key)
        tensors += [band, distance.double() * band, decay_steps.double() * band * decays]
    keys = [bias.values for bias in terms.bias if isinstance(bias, KeyBias)]
    return tensors + [values[..., None, :] - values[..., None] for values in keys]


def _equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and bool((one.double() - two.double()).abs().max() <= TOLERANCE)
