"""Checks of place: where a text begins shows where a scheme says so, as it says, and nowhere else."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case, position_limit
from hf_posenc.checks.claimed_properties import Claim, claim_of
from hf_posenc.checks.definition import definition, forward_at, reference_outputs
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    forward,
    max_deviation,
    positions_from,
    random_tokens,
)
from hf_posenc.checks.reference_attention import ReferenceTerms, attentions, replaced
from hf_posenc.checks.registry import register_check
from hf_posenc.checks.tolerances import EFFECT_FACTOR, NOISE_FLOOR
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.errors import PositionOutOfTable
from hf_posenc.patches.attention import AttentionOutput, PatchedAttention

FAR = (1_000, 10_000, 100_000, 1_000_000)
FEW = 12  # tokens of a text far out


@register_check("shift", company=True, costly=True)
def begins_anywhere(pair: Case) -> Deviation:
    """Where distance is all that counts, a text reads alike wherever it begins; elsewhere it reads as defined there.

    What claims distance alone is read off the scheme's terms (`hf_posenc.checks.claimed_properties`). Codes and tables
    claim that places count: a shift that does not show breaks the check as well.
    """
    with pair.patched() as model:
        tokens = random_tokens(model, _with_room(pair, model))
        claim, starts = _claim(pair, model, tokens)
        near = forward_at(model, tokens, 0)
        found = [(*_shifted(model, tokens, near, start, claim), f"begun at {start}") for start in starts]
        if claim == "place":
            found += [(*_unmoved(model, tokens, near, start), f"begun at {start}") for start in starts]
    value, where, how = max(found, default=(0.0, "no token", "there is no room for a shift"), key=lambda gap: gap[0])
    return pair.gap("shift", value, f"{where}, {how}")


@register_check("distance", company=True, costly=True)
def equal_distances_score_alike(pair: Case) -> Deviation:
    """In a text of one repeated token the first layer's log-odds of neighbouring keys are their distance's alone.

    Asked of schemes that claim it; the value is the largest spread along a diagonal of the attention.
    """
    with pair.patched() as model:
        tokens = random_tokens(model, 1).expand(1, _with_room(pair, model))
        if _claim(pair, model, tokens)[0] != "distance":
            return pair.gap("distance", 0.0, "no token: distance alone is not claimed")
        before = model.config._attn_implementation
        try:
            model.set_attn_implementation("eager")
            weights = first_weights(model, tokens)
        finally:
            model.set_attn_implementation(before)
    value, apart = _unevenness(weights[0].double().log(), causal=pair.causal)
    return pair.gap("distance", value, f"distance {apart}")


@register_check("far", company=True, costly=True)
def far_is_as_near(pair: Case) -> Deviation:
    """A short text at positions up to a million reads as defined there, from finite tables; past an end it is refused.

    Where distance is all that counts, it reads as at the start; where places count, no two read alike; a wide gap in
    the middle does not close again. The value is the largest deviation; infinite where something is not finite or not
    in order, or not refused.
    """
    with pair.patched() as model:
        end = position_limit(model)
        claim, _ = _claim(pair, model, random_tokens(model, _with_room(pair, model)))
        tokens = random_tokens(model, FEW if end is None else min(FEW, end))
        near, found = forward_at(model, tokens, 0), [(0.0, "no token", "the start")]
        for start in FAR if end is None else (end - tokens.shape[1],):
            found.append((*_shifted(model, tokens, near, start, claim), f"position {start}"))
            if claim == "place" and end is None:
                found.append(
                    (*_unmoved(model, tokens, forward_at(model, tokens, 2 * start), start), f"position {start}")
                )
            wrong = _disorder(reference_outputs(model, tokens, start)[1], max(FAR))
            found += [(math.inf, wrong, f"position {start}")] if wrong else []
        if end is None and (closed := _closed(model, tokens)):
            found.append((math.inf, f"a gap of {closed} reads as none", "no token"))
        if end is not None and not _refused(model, tokens, end):
            found.append((math.inf, "nothing refused", f"position {end + tokens.shape[1] - 1}"))
    value, where, place = max(found, key=lambda gap: gap[0])
    return pair.gap("far", value, f"{where} at {place}")


def _with_room(pair: Case, model: PreTrainedModel) -> int:
    """Tokens of a text that can still be shifted."""
    end = position_limit(model)
    return pair.trained + 6 if end is None else min(pair.trained + 6, max(1, end // 2))


def _claim(pair: Case, model: PreTrainedModel, tokens: Tensor) -> tuple[Claim, list[int]]:
    """What the scheme claims, by what it says of a text at places near enough for any arithmetic, and these."""
    end = position_limit(model)
    last = 4 * pair.trained + 3 if end is None else end - tokens.shape[1]
    starts = [start for start in sorted({1, 17, last}) if 0 < start <= last]
    if not starts:
        return None, starts
    return claim_of(
        reference_outputs(model, tokens)[1], *(reference_outputs(model, tokens, start)[1] for start in starts)
    ), starts


def first_weights(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Attention of the first layer, ``[row, heads, token, token]``.

    Looked at on its way: asked for ``output_attentions``, transformers puts hooks on a model and leaves them there.
    """
    seen: list[Tensor] = []

    def attend(own: Any, layer: PatchedAttention, *call: Any, **host: Any) -> AttentionOutput:
        mixed, weights = own(*call, **host)
        seen.append(weights)
        return mixed, weights

    with replaced(attentions(model), attend):
        forward_at(model, tokens, 0)
    return seen[0]


def _shifted(model: PreTrainedModel, tokens: Tensor, near: Tensor, start: int, claim: Claim) -> tuple[float, str]:
    """Deviation of a shifted text from the one at the start, where distance is all, or from its definition there."""
    now = forward_at(model, tokens, start)
    return _worst(max_deviation(now, near if claim == "distance" else definition(model, tokens, start)))


def _unmoved(model: PreTrainedModel, tokens: Tensor, near: Tensor, start: int) -> tuple[float, str]:
    moved = max_deviation(forward_at(model, tokens, start), near)[0]
    return (
        (0.0, "no token")
        if moved > EFFECT_FACTOR * NOISE_FLOOR
        else (math.inf, "no token, though places are said to count")
    )


def _worst(found: tuple[float, str]) -> tuple[float, str]:
    return (math.inf, f"no number at {found[1]}") if math.isnan(found[0]) else found


def _disorder(layers: list[ReferenceTerms], farthest: int) -> str:
    """What of the layers' tables is not finite, or out of order; empty where all is well."""
    index = torch.unique(torch.logspace(0, math.log10(farthest), 200).long())
    for said in layers:
        rotation, rows = said.scheme.rotation(), said.terms.rows
        if rows is not None:
            lengths = rows.length_of(index[None])[0]
            if bool((lengths.diff() < 0).any()):
                return "lengths of rows that fall"
            rotation = rows.rotation_of(int(lengths[-1]))
        if rotation is not None:
            angles = torch.as_tensor(rotation.frequencies, dtype=torch.float64).abs() * farthest
            if not bool(angles.isfinite().all()):
                return "angles that are no numbers"
        for bias in said.terms.bias:
            if isinstance(bias, ToeplitzBias) and not bool(bias.of_distance(index).isfinite().all()):
                return "biases that are no numbers"
    return ""


def _closed(model: PreTrainedModel, tokens: Tensor) -> int:
    """A gap that counters of 8 or 16 bits pass over, though half of it shows in the middle of a text; 0 if none is."""
    here, half = forward_at(model, tokens, 0), tokens.shape[1] // 2

    def moved(gap: int) -> float:
        positions = positions_from(model, tokens.shape[1])
        positions[:, half:] += gap  # without a mask, transformers takes what comes after a gap for another text
        return max_deviation(
            forward(model, tokens, position_ids=positions, attention_mask=torch.ones_like(tokens)), here
        )[0]

    loud = EFFECT_FACTOR * NOISE_FLOOR
    return next((bits for bits in (1 << 8, 1 << 16) if moved(bits // 2) > loud and moved(bits) <= loud), 0)


def _refused(model: PreTrainedModel, tokens: Tensor, start: int) -> bool:
    try:
        forward_at(model, tokens, start)
    except PositionOutOfTable:
        return True
    return False


def _unevenness(logits: Tensor, *, causal: bool) -> tuple[float, int]:
    """Largest spread along a diagonal of the steps from key to key, ``[heads, token, token]``, and its distance.

    Weights that small are zeros or roundings, and say nothing.
    """
    steps = logits.masked_fill(logits < LEAST, math.nan).diff(dim=-1)
    worst = (0.0, 0)
    for apart in range(1 if causal else 2 - steps.shape[1], steps.shape[1]):
        line = steps.diagonal(-apart, -2, -1)
        spread = line.nan_to_num(nan=-math.inf).amax(-1) - line.nan_to_num(nan=math.inf).amin(-1)
        worst = max(worst, (float(spread.clamp(min=0.0).max()), apart))
    return worst


LEAST = math.log(1e-6)
