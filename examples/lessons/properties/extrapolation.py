"""Properties along the distance: beyond the trained length, growth, fractional positions, decay, before and after.

Schemes with codes are measured by the products ⟨c(p), c(p + k)⟩. Schemes without codes are measured by the logits of
one query with keys of equal content, averaged over many contents.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from hf_posenc.errors import PosEncError
from hf_posenc.schemes.base import implements
from properties.layer import gaussian
from properties.target import ROUNDING, TRAINED, PropertyTarget, PropertyValue, not_applicable
from properties.uniqueness import difference

MILLION = 2**20
TEXT = 8  # tokens
NEAR, FAR_AWAY = 2**17, 2**25
GROWN = 1.3  # far over near maximum: 1 for a bounded function, 25 / 17 for a logarithm
FINE = 2.0**-10
STEADY = 0.05


def beyond(target: PropertyTarget) -> PropertyValue:
    """Score short texts at increasing positions, in a model patched for its trained length."""
    layer, furthest, refused = target.layer(factor=1), -1, ""
    for end in (TRAINED, TRAINED + 1, *(TRAINED << n for n in range(1, 15))):
        try:
            numbers = target.constant_scores(torch.arange(end - TEXT, end), layer)
        except PosEncError as error:
            refused = str(error).partition(". ")[0]
            break
        if bool(numbers.isnan().any()):
            refused = f"the scores at position {end - 1} are NaN"
            break
        furthest = end - 1
    says = f"last position that was tried and is defined; trained length {TRAINED}"
    return PropertyValue(furthest >= TRAINED, float(furthest), says + (f"; then: {refused}" if refused else ""))


def bounded(target: PropertyTarget) -> PropertyValue:
    """Compare the largest code, bias or rotated key at distant positions with the largest near the start."""
    if target.has_codes:
        near, far, what = *code_sizes(target), "channel of a code"
    else:
        biased = implements(target.layer().scheme, "bias")
        near, far, what = *(bias_sizes(target) if biased else (0.0, 0.0)), "bias"
        if max(near, far) < ROUNDING:
            if target.moved_by_position < ROUNDING:
                return not_applicable("position does nothing to attention")
            near, far, what = *key_sizes(target), "length of a rotated key over the key's own"
    grown = far / max(near, 1e-12)
    return PropertyValue(
        grown < GROWN, grown, f"largest {what}: far away {far:.3g}, near the start {near:.3g}", "",
        {"near": near, "far": far},
    )  # fmt: skip


def continuous(target: PropertyTarget) -> PropertyValue:
    """Compare a shift by 1/1024 of a position with a shift by a whole one, in codes or in the logits of keys."""
    positions = torch.arange(1, target.length - 1).double()
    if not target.has_codes and (target.moved_by_position < ROUNDING or target.counts_tokens):
        return not_applicable("it does not use the numbers of positions")
    whole = codes_or_logits(target, positions.long())
    step = (codes_or_logits(target, positions.long() + 1) - whole).nan_to_num(nan=0.0).abs().max()
    try:
        shifted = [codes_or_logits(target, positions + by) for by in (-FINE, FINE)]
        moves = [(one - whole).nan_to_num(nan=0.0).abs().max() for one in shifted]
    except (PosEncError, RuntimeError, TypeError):
        says = "nothing is defined between whole positions; a whole step moves a channel by up to this"
        return PropertyValue(False, float(step), says, "whole only", number="a step moves {:.2g}")
    share, whole_only = float(max(moves) / step.clamp(min=1e-12)), target.layer().scheme.whole_positions
    says = "largest change over 1/1024 of a position, divided by the largest over a whole one"
    return PropertyValue(share < STEADY, share, says, "whole only" if whole_only else "")


def codes_or_logits(target: PropertyTarget, positions: Tensor) -> Tensor:
    """Codes at ``positions [n]``, whole or fractional; for a scheme without codes, the logits of a later query."""
    codes = target.codes(positions)
    if codes is not None:
        return codes
    query = torch.tensor([target.length], dtype=positions.dtype)
    logits = target.profile(torch.cat((positions, query)), contents=4)
    return logits.masked_fill(~logits.isfinite(), -1e6)


def code_sizes(target: PropertyTarget) -> tuple[float, float]:
    """The largest channel of codes near the start, and at the largest positions that are defined."""
    end = target.reach
    near = target.codes(torch.arange(min(end // 2, 1024)))
    far = target.codes(torch.arange(end - min(end // 2, 1024), end))
    return float(near.abs().max()), float(far.abs().max())  # type: ignore[union-attr]


def bias_sizes(target: PropertyTarget) -> tuple[float, float]:
    """The largest bias, minus that of the own key, at small and at large distances.

    If distance counts tokens instead of positions, short and long texts are compared.
    """
    if target.counts_tokens:
        return tuple(bias_at(target, torch.arange(n)) for n in (256, 4096))  # type: ignore[return-value]
    end = target.reach if target.layer().scheme.longest else FAR_AWAY
    if end < NEAR:
        return bias_at(target, torch.arange(end // 2)), bias_at(target, torch.arange(end))
    return bias_at(target, some_of(NEAR)), bias_at(target, some_of(end))


def some_of(length: int) -> Tensor:
    """At most 512 positions of a text, including the first and the last."""
    drawn = torch.rand(510, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cat((torch.tensor([0, length - 1]), (drawn * length).long())).unique()


def bias_at(target: PropertyTarget, positions: Tensor) -> float:
    """The largest bias of a text's last query, minus the bias of its own key."""
    layer = target.layer()
    biases = layer.biases(*layer.tokens(len(positions), 4), positions[None], last=1)
    return float((biases - biases[..., -1:]).nan_to_num(nan=0.0).abs().max())


def key_sizes(target: PropertyTarget) -> tuple[float, float]:
    """Largest norm of a rotated key relative to the unrotated one, near the start and a million tokens later."""
    layer = target.layer()
    content = gaussian(1, TEXT, layer.geometry.width, seed=3)
    own = layer.key(content).norm(dim=-1)
    ends = (TRAINED, min(target.reach, MILLION))
    sizes = [layer.call(content, content, torch.arange(e - TEXT, e)[None]).keys for e in ends]
    own = own.repeat_interleave(sizes[0][0].shape[1] // own.shape[1], dim=1)  # where query heads have keys of their own
    near, far = (float(max((k.norm(dim=-1) / own).max().detach() for k in keys)) for keys in sizes)
    return near, far


CONTENTS = 64
STARTS = (0, 1, 9, 30)
FALLS = -0.9  # largest rank correlation with distance of a curve that counts as falling


def decays(target: PropertyTarget) -> PropertyValue:
    """Rank correlation of score and octave of distance; for codes, the worst of several starting positions."""
    positions = torch.arange(target.length)
    codes = target.codes(positions)
    if codes is not None:
        span = len(positions) - max(STARTS)
        curves = [codes[s] @ codes[s : s + span].T for s in STARTS if span > 8]
        what = f"inner products of codes, worst of the starts {', '.join(map(str, STARTS))}"
    elif target.moved_by_position < ROUNDING:
        return not_applicable("position does nothing to attention")
    else:
        scores = target.profile(positions, contents=CONTENTS, alike=True).flip(-1)
        curves, what = [scores.mean(0)], "scores of keys equal to the query, averaged over contents and heads"
    if not curves:
        return not_applicable("there are too few positions for a curve")
    worst = max(map(falling, curves))
    lost = [float(1 - c[-1] / c[0]) if float(c[0]) else 0.0 for c in curves]
    return PropertyValue(
        worst <= FALLS, worst, f"rank correlation of distance, in octaves, and {what}", "", {"lost": min(lost)}
    )


def direction(target: PropertyTarget) -> PropertyValue:
    """Compare scores k tokens ahead with scores k tokens behind: products of codes, or an encoder's logits."""
    middle = (min(target.length, 64) - 1) // 2
    positions = torch.arange(2 * middle + 1)
    codes = target.codes(positions)
    if codes is not None:
        products = codes @ codes[middle]
        apart = difference(products, products.flip(-1)) / max(float(products.abs().max()), 1e-12)
        return PropertyValue(
            apart > ROUNDING, apart,
            "largest difference of ⟨c(p), c(p + k)⟩ and ⟨c(p), c(p − k)⟩, divided by the largest product; "
            "learned projections may distinguish what the product does not",
        )  # fmt: skip
    try:
        layer = target.layer(causal=False)
    except PosEncError:
        return not_applicable("it is defined in decoders only, which see one side")
    row = layer.scores(*layer.tokens(len(positions), 8), positions[None])[:, :, middle].flatten(0, 1)
    row = row - row[:, middle : middle + 1]
    if float(row.nan_to_num(neginf=-1e3).abs().max()) < ROUNDING:
        return not_applicable("position does nothing to attention")
    apart = difference(row, row.flip(-1))
    return PropertyValue(
        apart > ROUNDING, apart, "largest difference between scores k tokens ahead and k tokens behind, in an encoder"
    )


def falling(curve: Tensor) -> float:
    """Rank correlation with distance of a curve's means over octaves (0, 1, 2 … 3, 4 … 7, …); 1 for a flat curve."""
    from scipy.stats import spearmanr

    if not bool(curve[:2].isfinite().all()):
        return 1.0
    edges = [0, *(2**n for n in range(len(curve).bit_length()) if 2**n < len(curve)), len(curve)]
    means = torch.stack([curve[a:b].mean() for a, b in pairwise(edges)])
    means = means.nan_to_num(neginf=-1e9)  # masked distances count as fallen
    if float(means.amax() - means.amin()) < ROUNDING:
        return 1.0
    return float(spearmanr(torch.arange(len(means)), means).statistic)
