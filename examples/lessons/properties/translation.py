"""Properties under translation: whether a shift is a linear map of codes, and whether scores depend only on distance.

The map is fitted by least squares on some positions of a text, and tested on other positions of a longer text.

    M = argmin Σ_p ‖M c(p) − c(p + k)‖²        residual = rms ‖M c(p) − c(p + k)‖ / rms ‖c(p + k) − c(p)‖
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_posenc.errors import PosEncError
from properties.target import FAR, ROUNDING, PropertyTarget, PropertyValue, not_applicable
from properties.uniqueness import difference

STEP = 5
NEARLY = 1e-4  # residuals are rounding if a map exists, and 2e-4 or more if it does not
FITTED, JUDGED = 320, 80
LATER = 10_000
QUERIES, CONTENTS = 64, 4


@dataclass(frozen=True)
class TranslationFit:
    """A fitted map p → p + k, and its error on other positions.

    Attributes:
        matrix: ``[width, width]``, with codes as rows: c(p) M ≈ c(p + k).
        residual: error of the linear map, relative to the length of a step.
        affine: error of a linear map with a constant, relative to the length of a step.
        norm_change: largest relative change of a code's norm: | ‖c(p) M‖ / ‖c(p)‖ − 1 |.
    """

    matrix: Tensor
    residual: float
    affine: float
    norm_change: float


def linear(target: PropertyTarget) -> PropertyValue:
    """Fit a linear map to codes, or to the scores of several queries with a key at increasing distance."""
    if not target.has_codes and target.moved_by_position < ROUNDING:
        return not_applicable("position does nothing to attention")
    try:
        found = fit(*pairs(target))
    except PosEncError as error:
        return not_applicable(str(error))
    if found is None:
        return PropertyValue(False, float("inf"), "far keys become invisible, which no linear map does", "unseen")
    holds = found.residual < NEARLY
    note = "" if holds else "affine" if found.affine < NEARLY else ""
    if holds and found.norm_change < NEARLY and target.has_codes:
        note = "rotation"
    what = "codes" if target.has_codes else f"the scores of a key with {QUERIES} later queries"
    says = (
        f"error of the linear map of {what} that was fitted for k = {STEP}, on other positions, in steps; "
        f"with a constant, {found.affine:.1g}"
    )
    return PropertyValue(holds, found.residual, says, note, {"affine": found.affine, "norm": found.norm_change})


def relative(target: PropertyTarget) -> PropertyValue:
    """Compare logits of a repeated token along the diagonals, and products of codes likewise."""
    positions = torch.arange(target.length)
    scores = target.constant_scores(positions)
    moved = scores[scores.isfinite()]
    if float(moved.abs().max()) < ROUNDING:
        return not_applicable("position does nothing to attention")
    later = target.constant_scores(positions + min(LATER, target.reach - len(positions)))
    uneven = max(off_diagonals(scores), difference(scores, later)) / float(moved.std())
    says = (
        f"largest difference between scores at one distance of {len(positions)} equal tokens, at the start and {LATER} "
        "positions later, in standard deviations"
    )
    codes = target.codes(positions)
    if codes is None:
        return PropertyValue(uneven < NEARLY, uneven, says)
    products = codes @ codes.T
    alone = off_diagonals(products[None]) / max(float(products.std()), 1e-12)
    says += f"; of the products of codes alone {alone:.1g}"
    note = "codes alone do" if uneven >= NEARLY and alone < NEARLY else ""
    return PropertyValue(uneven < NEARLY, uneven, says, note, {"codes_alone": alone})


def pairs(target: PropertyTarget) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Codes before and after a step: at positions to fit the map, and at others of a longer text to test it."""
    end = target.reach if target.has_codes else min(target.reach, FITTED + JUDGED if target.counts_tokens else 1024)
    longer = 2 * end if end == FAR else end
    generator = torch.Generator().manual_seed(0)
    positions = torch.randperm(end - STEP, generator=generator)[: FITTED + JUDGED]
    fitted, judged = positions[torch.arange(len(positions)) % 5 > 0], positions[::5]
    return before_and_after(target, fitted, end), before_and_after(target, judged, longer)


def before_and_after(target: PropertyTarget, positions: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """Codes, or logits, at ``positions`` and one step later, each ``[n, width]``, in a text that ends at ``end``."""
    both = torch.cat((positions, positions + STEP)).unique()
    if target.has_codes:
        both = torch.cat((both, torch.tensor([end - 1]))).unique()
        rows = target.codes(both)
    else:
        if target.counts_tokens:
            both = torch.arange(end)
        evaluated = torch.cat((both, end + 3 * torch.arange(QUERIES)))
        scores = target.last_scores(QUERIES, evaluated, contents=CONTENTS)[..., : len(both)]
        rows = scores.flatten(0, 2).T
    assert rows is not None
    return rows[torch.searchsorted(both, positions.contiguous())], rows[torch.searchsorted(both, positions + STEP)]


def fit(fitted: tuple[Tensor, Tensor], judged: tuple[Tensor, Tensor]) -> TranslationFit | None:
    """Fit the least-squares map of rows ``[n, width]`` to rows; None if a value is not finite."""
    (before, after), (from_there, to_there) = fitted, judged
    if not all(bool(x.isfinite().all()) for x in (*fitted, *judged)):
        return None
    matrix = solve(before, after)
    step = float((to_there - from_there).norm()) or 1.0
    moved = from_there @ matrix
    with_one, there_with_one = (torch.nn.functional.pad(x, (0, 1), value=1.0) for x in (before, from_there))
    affine = there_with_one @ solve(with_one, after) - to_there
    lengths = from_there.norm(dim=-1).clamp(min=1e-12)
    norm_change = float((moved.norm(dim=-1) / lengths - 1).abs().max())
    return TranslationFit(matrix, float((moved - to_there).norm()) / step, float(affine.norm()) / step, norm_change)


def solve(before: Tensor, after: Tensor) -> Tensor:
    """Least-squares solution of before @ M = after with the smallest norm; directions below rounding are dropped."""
    return torch.linalg.lstsq(before, after, rcond=1e-6, driver="gelsd").solution


def off_diagonals(scores: Tensor) -> float:
    """Largest spread along a diagonal of ``[heads, n, n]``; infinite if a part of a diagonal is masked."""
    count, worst = scores.shape[-1], 0.0
    for offset in range(1 - count, count):
        line = scores.diagonal(offset, -2, -1)
        seen = line.isfinite()
        if not bool(seen.any()):
            continue
        if not bool(seen.all()):
            return float("inf")
        worst = max(worst, float((line.amax(-1) - line.amin(-1)).max()))
    return worst
