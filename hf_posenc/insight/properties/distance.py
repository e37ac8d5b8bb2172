"""Properties of scores by distance: whether they decay, and whether they distinguish before from after.

Codes are compared as they are, ⟨c(p), c(p + k)⟩; schemes without codes are compared by the logits of a query with the
content of all keys, on average over many contents.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from hf_posenc.errors import PosEncError
from hf_posenc.insight.properties.cell import PropertyValue, not_applicable
from hf_posenc.insight.properties.layer import gaussian
from hf_posenc.insight.properties.target import ROUNDING, PropertyTarget

CONTENTS = 64
STARTS = (0, 1, 9, 30)
FALLS = -0.9  # rank correlation of the means of octaves with distance


def decays(target: PropertyTarget) -> PropertyValue:
    """Rank correlation of score and distance, by octaves of distance; of codes from several positions, the worst."""
    positions = torch.arange(target.length)
    codes = target.codes(positions)
    if codes is not None:
        span = len(positions) - max(STARTS)
        curves = [codes[s] @ codes[s : s + span].T for s in STARTS if span > 8]
        what = f"inner products of codes, the worst of the starts {', '.join(map(str, STARTS))}"
    elif target.moved_by_position < ROUNDING:
        return not_applicable("position does nothing to attention")
    else:
        found = target.profile(positions, contents=CONTENTS, alike=True).flip(-1)
        curves, what = (
            [found.mean(0)],
            "logits of keys that say what the query says, on average over contents and heads",
        )
    if not curves:
        return not_applicable("there are too few positions for a curve")
    worst = max(map(falling, curves))
    lost = [float(1 - c[-1] / c[0]) if float(c[0]) else 0.0 for c in curves]
    return PropertyValue(
        worst <= FALLS, worst, f"rank correlation with distance, by octaves, of {what}", "", {"lost": min(lost)}
    )


def direction(target: PropertyTarget) -> PropertyValue:
    """Scores k tokens ahead against k tokens behind: inner products of codes, or an encoder's logits."""
    middle = (min(target.length, 64) - 1) // 2
    positions = torch.arange(2 * middle + 1)
    codes = target.codes(positions)
    if codes is not None:
        products = codes @ codes[middle]
        apart = sides(products[None], middle) / max(float(products.abs().max()), 1e-12)
        return PropertyValue(
            apart > ROUNDING, apart,
            "largest difference of ⟨c(p), c(p + k)⟩ and ⟨c(p), c(p − k)⟩, against the largest product; "
            "learned projections of queries and keys may tell what the product does not",
        )  # fmt: skip
    try:
        layer = target.layer(causal=False)
    except PosEncError:
        return not_applicable("it is defined in decoders only, which see one side")
    g = layer.geometry
    key = gaussian(1, 1, g.width, seed=3).expand(8, len(positions), -1)
    query = gaussian(8, 1, g.width, seed=4).expand(-1, len(positions), -1)
    row = layer.scores(query, key, positions[None])[:, :, middle].flatten(0, 1)
    row = row - row[:, middle : middle + 1]
    if float(row.nan_to_num(neginf=-1e3).abs().max()) < ROUNDING:
        return not_applicable("position does nothing to attention")
    apart = sides(row, middle)
    return PropertyValue(
        apart > ROUNDING, apart, "largest difference of logits k tokens ahead and k tokens behind, in an encoder"
    )


def falling(curve: Tensor) -> float:
    """Rank correlation with distance of the means of ``curve [distances]`` over 0, 1, 2 … 3, 4 … 7, …; 1 if flat."""
    from scipy.stats import spearmanr

    if not bool(curve[:2].isfinite().all()):
        return 1.0
    edges = [0, *(2**n for n in range(len(curve).bit_length()) if 2**n < len(curve)), len(curve)]
    means = torch.stack([curve[a:b].mean() for a, b in pairwise(edges)])
    seen = means.nan_to_num(neginf=-1e9)  # what is not seen has fallen
    if float(seen.amax() - seen.amin()) < ROUNDING:
        return 1.0
    return float(spearmanr(torch.arange(len(seen)), seen).statistic)


def sides(row: Tensor, middle: int) -> float:
    """Largest difference of ``row [n, 2 · middle + 1]`` and its mirror image; infinite where one side is unseen."""
    mirror = row.flip(-1)
    if not torch.equal(row.isfinite(), mirror.isfinite()):
        return float("inf")
    return float((row - mirror).nan_to_num(nan=0.0).abs().max())
