"""Properties of uniqueness: whether positions are distinguishable, and independent of the text length."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.core.torch_state import drawn_from
from hf_posenc.insight.properties.cell import PropertyValue, not_applicable
from hf_posenc.insight.properties.target import ROUNDING, PropertyTarget

CONTENTS = 8


def unique(target: PropertyTarget) -> PropertyValue:
    """Least distance between two codes, or between what queries score equal keys at two positions."""
    positions = torch.arange(target.length)
    codes = target.codes(positions)
    if codes is not None:
        least = least_distance(codes)
        return PropertyValue(
            least > ROUNDING, least, f"least distance between the codes of two of {len(positions)} positions"
        )
    if target.moved_by_position < ROUNDING:
        return PropertyValue(
            False, 0.0, "all positions are alike: queries score equal keys the same wherever they stand"
        )
    profile = target.profile(positions, contents=CONTENTS)
    hidden = int((~profile.isfinite()).any(0).sum())
    if hidden > 1:
        return PropertyValue(
            False, 0.0, f"{hidden} of {len(positions)} positions are alike: none of them is seen", "unseen"
        )
    least = least_distance(profile.T)
    return PropertyValue(
        least > ROUNDING, least,
        f"least difference between what {CONTENTS} queries score equal keys at two of {len(positions)} distances",
        "of distances",
    )  # fmt: skip


def same(target: PropertyTarget) -> PropertyValue:
    """The first positions of a short text against those of a long one."""
    short = torch.arange(target.length // 2)
    long = torch.arange(target.length)
    one, two = target.codes(short), target.codes(long)
    if one is not None and two is not None:
        apart = float((one - two[: len(short)]).abs().max())
        says = f"largest difference between the codes of {len(short)} positions, alone and with as many after them"
    else:
        if target.moved_by_position < ROUNDING:
            return not_applicable("position does nothing to attention")
        long_scores = target.constant_scores(long)[:, : len(short), : len(short)]
        apart = difference(target.constant_scores(short), long_scores)
        says = f"largest difference between the logits of {len(short)} tokens, alone and with as many after them"
    return PropertyValue(apart < ROUNDING, apart, says)


def equal_gaps(target: PropertyTarget) -> PropertyValue:
    """The first step of a text of three tokens against that of a text of four: in codes, or in logits."""
    steps = []
    for count in (3, 4):
        positions = torch.arange(count)
        codes = target.codes(positions)
        if codes is not None:
            steps.append((codes[1] - codes[0]).norm() / len(codes[0]) ** 0.5)
        elif target.moved_by_position < ROUNDING:
            return not_applicable("position does nothing to attention")
        else:
            last = target.constant_scores(positions)[:, 2]
            steps.append((last[:, 1] - last[:, 0]).norm())
    apart = float((steps[0] - steps[1]).abs())
    says = f"a step is {steps[0]:.3f} in a text of 3 tokens and {steps[1]:.3f} in one of 4, a channel"
    return PropertyValue(apart < ROUNDING, apart, says if target.has_codes else says.replace("a channel", "in logits"))


def deterministic(target: PropertyTarget) -> PropertyValue:
    """Two calls of one scheme in evaluation; and, of what is learned, two fresh draws."""
    positions = torch.arange(target.length // 2)
    with drawn_from(0):
        one, two = (target.constant_scores(positions) for _ in range(2))
    apart = difference(one, two)
    drawn, other = ([weight.detach() for weight in target.scheme(seed=seed).parameters()] for seed in (0, 1))
    fresh = max((float((a - b).abs().max()) for a, b in zip(drawn, other, strict=True)), default=0.0)
    recipe = target.layer().scheme.recipe and apart == 0.0
    trained = "after training" if fresh > 0 else "not in training" if recipe else ""
    says = f"largest difference between the logits of {len(positions)} tokens in two calls"
    if fresh > 0:
        says += f"; two fresh draws of what is learned differ by {fresh:.2g}"
    return PropertyValue(apart == 0.0, apart, says, trained if apart == 0.0 else "")


def least_distance(codes: Tensor) -> float:
    """Between two rows of ``[n, width]``."""
    apart = torch.cdist(codes, codes, compute_mode="donot_use_mm_for_euclid_dist")
    return float(apart.fill_diagonal_(torch.inf).min())


def difference(one: Tensor, two: Tensor) -> float:
    """Largest difference of two sets of logits; infinite where one sees what the other does not."""
    if not torch.equal(one.isfinite(), two.isfinite()):
        return float("inf")
    return float((one - two).nan_to_num(nan=0.0).abs().max())
