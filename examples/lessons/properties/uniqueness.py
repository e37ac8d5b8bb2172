"""Whether positions can be distinguished: on a line, independently of the length of the text, and on a grid.

On a grid, a token has two coordinates. A scheme without coordinates is applied to each axis: a code with half the width
per axis, a rotation with alternating axes for its pairs, and a bias of distance as a sum over the axes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.rotation import rotate, table
from hf_posenc.core.terms import KeyBias, ToeplitzBias
from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.forward.rotate_qk import region_rotations, rotate_regions
from properties.layer import Layer, gaussian
from properties.target import ROUNDING, WIDTH, PropertyTarget, PropertyValue, not_applicable

CONTENTS = 8
SIDE = 6  # of the grid
LEAST = "smallest difference {:.2g}"


def unique(target: PropertyTarget) -> PropertyValue:
    """Smallest distance between two codes, or between the scores of several queries for equal keys at two positions."""
    positions = torch.arange(target.length)
    codes = target.codes(positions)
    if codes is not None:
        least = least_distance(codes)
        return PropertyValue(
            least > ROUNDING, least, f"smallest distance between two codes among {len(positions)} positions"
        )
    if target.moved_by_position < ROUNDING:
        return PropertyValue(False, 0.0, "all positions are alike: equal keys get equal scores everywhere")
    profile = target.profile(positions, contents=CONTENTS)
    hidden = int((~profile.isfinite()).any(0).sum())
    if hidden > 1:
        return PropertyValue(
            False, 0.0, f"{hidden} of {len(positions)} positions are alike: none of them is seen", "unseen"
        )
    least = least_distance(profile.T)
    return PropertyValue(
        least > ROUNDING, least,
        f"smallest difference between {CONTENTS} queries' scores of equal keys at two of {len(positions)} distances",
        "of distances",
    )  # fmt: skip


def same(target: PropertyTarget) -> PropertyValue:
    """Compare the first positions of a short text with those of a long one."""
    short = torch.arange(target.length // 2)
    long = torch.arange(target.length)
    one, two = target.codes(short), target.codes(long)
    if one is not None and two is not None:
        apart = float((one - two[: len(short)]).abs().max())
        says = f"largest difference between the codes of {len(short)} positions, in a text of that length and of twice"
    else:
        if target.moved_by_position < ROUNDING:
            return not_applicable("position does nothing to attention")
        long_scores = target.constant_scores(long)[:, : len(short), : len(short)]
        apart = difference(target.constant_scores(short), long_scores)
        says = f"largest difference between the scores of {len(short)} tokens, in a text of that length and of twice"
    return PropertyValue(apart < ROUNDING, apart, says)


def equal_gaps(target: PropertyTarget) -> PropertyValue:
    """Compare the first step in a text of three tokens with that in a text of four, in codes or in logits."""
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
    return PropertyValue(apart < ROUNDING, apart, says if target.has_codes else says.replace("a channel", "in scores"))


def deterministic(target: PropertyTarget) -> PropertyValue:
    """Compare two calls of one scheme in evaluation, and two fresh draws of its learned parameters."""
    positions = torch.arange(target.length // 2)
    with fixed_seed(0):
        one, two = (target.constant_scores(positions) for _ in range(2))
    apart = difference(one, two)
    drawn, other = ([weight.detach() for weight in target.scheme(seed=seed).parameters()] for seed in (0, 1))
    fresh = max((float((a - b).abs().max()) for a, b in zip(drawn, other, strict=True)), default=0.0)
    recipe = target.layer().scheme.recipe and apart == 0.0
    trained = "after training" if fresh > 0 else "not in training" if recipe else ""
    says = f"largest difference between the scores of {len(positions)} tokens in two calls"
    if fresh > 0:
        says += f"; two fresh draws of what is learned differ by {fresh:.2g}"
    return PropertyValue(apart == 0.0, apart, says, trained if apart == 0.0 else "")


def least_distance(codes: Tensor) -> float:
    """Smallest distance between two rows of ``[n, width]``."""
    apart = torch.cdist(codes, codes, compute_mode="donot_use_mm_for_euclid_dist")
    return float(apart.fill_diagonal_(torch.inf).min())


def difference(one: Tensor, two: Tensor) -> float:
    """Largest difference between two sets of logits; infinite if their masks differ."""
    if not torch.equal(one.isfinite(), two.isfinite()):
        return float("inf")
    return float((one - two).nan_to_num(nan=0.0).abs().max())


def axes(target: PropertyTarget) -> PropertyValue:
    """On a grid of 6 × 6: are codes distinct, and do scores depend only on the differences of both coordinates?"""
    scheme = target.layer().scheme
    grid = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE))
    codes = target.codes(torch.arange(min(SIDE, target.reach)))
    if codes is not None:
        if target.layer().scheme.needs_whole_text:
            return not_applicable("what a step means depends on the length of the text, and a grid has two lengths")
        line = target.codes(torch.arange(SIDE), Layer(target.scheme(width=WIDTH // 2)))
        least = least_distance(torch.cat((line[grid[:, 0]], line[grid[:, 1]]), dim=-1))  # type: ignore[index]
        says = "smallest distance between codes on a grid of 6 × 6, with half the channels for each axis"
        return PropertyValue(least > ROUNDING, least, says, "half the channels an axis", number=LEAST)
    rotation, takes = scheme.rotation(), False
    if rotation is not None:
        takes = rotation.axes is not None
        if len(scheme.regions(context(target))) > 1 or scheme.row_rotation() is not None:
            return not_applicable("it is made for distances along one axis")
        own = rotation if takes else replace(rotation, axes=tuple(m % 2 for m in range(len(rotation.frequencies))))
        uneven = uneven_grid(grid_scores(target, own, grid), grid)
        says = "largest difference between scores at equal offsets on a grid of 6 × 6"
        return PropertyValue(
            uneven < ROUNDING, uneven, says, "takes coordinates" if takes else "half the pairs an axis"
        )
    bias = scheme.bias(context(target))
    if isinstance(bias, (KeyBias, ToeplitzBias)):
        return biased_grid(target, grid)
    if target.moved_by_position < ROUNDING:
        return not_applicable("position does nothing to attention")
    return not_applicable("it is made for distances along one axis")


def context(target: PropertyTarget) -> PositionContext:
    """Context of a short text."""
    positions = torch.arange(SIDE)[None]
    layer = target.layer()
    ctx = PositionContext(positions, positions, layer.geometry.causal, True, memo={})
    hidden = gaussian(1, SIDE, layer.geometry.width, seed=3)
    extra = layer.scheme.extra_key_channels(replace(ctx, hidden=hidden))
    return replace(ctx, extra_key_channels=None if extra is None else extra.float(), projections=layer, layer=0)


@torch.no_grad()
def grid_scores(target: PropertyTarget, rotation: Rotation, grid: Tensor) -> Tensor:
    """Logits of equal tokens on the cells of a grid, ``[heads, cells, cells]``."""
    layer = target.layer()
    query, key = layer.tokens(len(grid))
    q, k = layer.scheme.prepare(layer.query(query), layer.key(key))
    count = 1 + max(rotation.axes or (0,))
    coordinates = torch.nn.functional.pad(grid, (0, max(count - 2, 0)))[None]
    if rotation.axes == layer.scheme.rotation().axes:  # type: ignore[union-attr]  # its own axes: through its own hook
        ctx = PositionContext(*(torch.arange(len(grid))[None],) * 2, True, True, coordinates=coordinates)
        (q,), (k,), _ = rotate_regions(region_rotations(layer.scheme, ctx), q, k, k)
    else:
        cos_sin = table(rotation, coordinates)
        q, k = rotate(q, rotation, cos_sin), rotate(k, rotation, cos_sin)
    groups = q.shape[1] // k.shape[1]
    return (q @ k.repeat_interleave(groups, 1).transpose(-1, -2))[0] * layer.geometry.head_dim**-0.5


def uneven_grid(scores: Tensor, grid: Tensor) -> float:
    """Largest spread of ``scores [heads, cells, cells]`` among pairs of cells at the same offset."""
    offset = grid[:, None] - grid[None]
    key = (offset[..., 0] + SIDE) * 4 * SIDE + offset[..., 1] + SIDE
    worst = 0.0
    for one in key.unique():
        found = scores[:, key == one]
        worst = max(worst, float((found.amax(-1) - found.amin(-1)).max()))
    return worst


def biased_grid(target: PropertyTarget, grid: Tensor) -> PropertyValue:
    """Measure the largest bias on a grid that is a bias of |Δx| plus a bias of |Δy|."""
    line = target.constant_scores(torch.arange(SIDE))[:, -1].flip(-1)  # by distance, [heads, SIDE]
    if not bool(line.isfinite().all()):
        return not_applicable("it is made for distances along one axis")
    total = line[:, grid[:, 0]] + line[:, grid[:, 1]]
    worst = float(total.abs().max())
    return PropertyValue(
        worst > ROUNDING,
        worst,
        "largest bias on a grid of 6 × 6, one axis added to the other",
        "axes add up",
        number="bias up to {:.2g}",
    )
