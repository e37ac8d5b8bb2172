"""Checks of far positions: outputs at positions up to a million equal the formula, and past its end a scheme raises."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.checks.case import Case, position_limit
from hf_posenc.checks.forward import forward, max_deviation, positions_from, random_tokens
from hf_posenc.checks.reference_model import forward_from, reference_outputs
from hf_posenc.checks.registry import Measured, located, register_check, worst
from hf_posenc.checks.shift import claim_and_shifts, missing_effect, shift_deviation, shiftable_length
from hf_posenc.checks.tolerances import EFFECT_FACTOR, NOISE_FLOOR
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.errors import PositionOutOfTable
from hf_posenc.patching.reference_attention import ReferenceTerms

STARTS = (1_000, 10_000, 100_000, 1_000_000)
LENGTH = 12  # tokens


@register_check("far_positions", needs=("is_deterministic",), slow=True)
def far_positions_match_definition(case: Case) -> Measured:
    """Outputs of a short text at positions up to a million equal the formula.

    If the scheme claims that only distances matter, they equal the outputs at position 0 instead. If absolute positions
    matter, outputs at different positions must differ. A large gap between positions must have an effect, tables must
    be finite and monotonic, and positions past the scheme's end must be refused. The value is the largest deviation;
    infinite if one of these does not hold.
    """
    with case.patched() as model:
        end = position_limit(model)
        claim, _ = claim_and_shifts(case, model, random_tokens(model, shiftable_length(case, model)))
        tokens = random_tokens(model, LENGTH if end is None else min(LENGTH, end))
        unshifted = forward_from(model, tokens, 0)
        measured = [(0.0, "no token, at position 0")]
        starts = STARTS if end is None else (end - tokens.shape[1],)
        for start in starts:
            location = f"at position {start}"
            measured.append(located(shift_deviation(model, tokens, unshifted, start, claim), location))
            if claim == "position" and end is None:
                twice_as_far = forward_from(model, tokens, 2 * start)
                measured.append(located(missing_effect(model, tokens, twice_as_far, start), location))
            if invalid := _invalid_table(reference_outputs(model, tokens, start)[1], max(STARTS)):
                measured.append((math.inf, f"{invalid}, {location}"))
        if end is None and (gap := _ineffective_gap(model, tokens)):
            measured.append((math.inf, f"a gap of {gap} positions has no effect, no token"))
        if end is not None and not _is_refused(model, tokens, end):
            measured.append((math.inf, f"no PositionOutOfTable, at position {end + tokens.shape[1] - 1}"))
    return worst(measured)


def _invalid_table(layers: list[ReferenceTerms], farthest: int) -> str:
    """Description of a value in the layers' tables that is not finite or not monotonic; empty if there is none."""
    index = torch.unique(torch.logspace(0, math.log10(farthest), 200).long())
    for ref in layers:
        rotation, rows = ref.scheme.rotation(), ref.terms.row_rotation
        if rows is not None:
            lengths = rows.length_of(index[None])[0]
            if bool((lengths.diff() < 0).any()):
                return "effective lengths that decrease"
            rotation = rows.rotation_of(int(lengths[-1]))
        if rotation is not None:
            angles = torch.as_tensor(rotation.frequencies, dtype=torch.float64).abs() * farthest
            if not bool(angles.isfinite().all()):
                return "angles that are not finite"
        for bias in ref.terms.bias:
            if isinstance(bias, ToeplitzBias) and not bool(bias.of_distance(index).isfinite().all()):
                return "biases that are not finite"
    return ""


def _ineffective_gap(model: PreTrainedModel, tokens: Tensor) -> int:
    """A gap of 2^8 or 2^16 positions without effect although half of it has one (integer overflow); 0 if none."""
    contiguous, half = forward_from(model, tokens, 0), tokens.shape[1] // 2

    def has_effect(gap: int) -> bool:
        positions = positions_from(model, tokens.shape[1])
        positions[:, half:] += gap
        mask = torch.ones_like(tokens)  # without it transformers takes a gap for the start of another document
        output = forward(model, tokens, position_ids=positions, attention_mask=mask)
        return max_deviation(output, contiguous)[0] > EFFECT_FACTOR * NOISE_FLOOR

    return next((gap for gap in (1 << 8, 1 << 16) if has_effect(gap // 2) and not has_effect(gap)), 0)


def _is_refused(model: PreTrainedModel, tokens: Tensor, start: int) -> bool:
    try:
        forward_from(model, tokens, start)
    except PositionOutOfTable:
        return True
    return False


@register_check("length")
def runs_or_raises(case: Case) -> Measured:
    """Texts of the trained length L, L + 1 and 4 L give finite outputs; past its end a scheme raises.

    The value is the number of lengths at which that is not true.
    """
    with case.patched() as model:
        end = position_limit(model)
        lengths = {case.trained_length, case.trained_length + 1, 4 * case.trained_length}
        if end is not None:
            lengths |= {end, end + 1}
        invalid = []
        for length in sorted(lengths):
            past_end = end is not None and length > end
            try:
                valid = bool(forward(model, random_tokens(model, length)).isfinite().all()) and not past_end
            except PositionOutOfTable:
                valid = past_end
            if not valid:
                invalid.append(length)
    location = f"lengths {invalid}" if invalid else "no length"
    return float(len(invalid)), location
