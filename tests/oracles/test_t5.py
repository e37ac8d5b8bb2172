"""T5's buckets against transformers' function, and the exact thresholds."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from hf_posenc.core.context import PositionContext
from hf_posenc.schemes.bias.t5 import T5Bias, thresholds

from . import models

SIZES = [(32, 128), (16, 40), (8, 9), (64, 512), (320, 800), (4, 1000), (32, 20)]


def scheme(causal: bool, buckets: int = 32, max_distance: int = 128) -> T5Bias:
    return T5Bias(models.geometry(causal=causal), num_buckets=buckets, max_distance=max_distance)


@pytest.mark.parametrize(("buckets", "max_distance"), SIZES)
@pytest.mark.parametrize("causal", [True, False])
def test_equals_transformers(buckets: int, max_distance: int, causal: bool) -> None:
    distance = torch.arange(-1000, 1001)
    theirs = T5Attention._relative_position_bucket(-distance, not causal, buckets, max_distance)
    ours = scheme(causal, buckets, max_distance).bucket(distance)
    wrong = distance[ours != theirs].abs().tolist()
    # Their float32 logarithm may fall below an exact power; there, and nowhere else, the exact bucket is one higher.
    assert set(wrong) <= exact_powers(buckets if causal else buckets // 2, max_distance)
    assert ours.min() >= 0
    assert ours.max() < buckets


def exact_powers(buckets: int, max_distance: int) -> set[int]:
    """Whole distances at which a bucket starts exactly: (n / E)^K = (M / E)^j."""
    exact, found = buckets // 2, set()
    wide = buckets - exact
    for j in range(wide + 1):
        goal = Fraction(max_distance, exact) ** j
        near = round(exact * float(goal) ** (1 / wide))
        found |= {n for n in (near - 1, near, near + 1) if Fraction(n, exact) ** wide == goal}
    return found


@pytest.mark.parametrize(("exact", "ratio"), [(2, 2), (8, 2), (8, 3), (16, 2), (5, 7)])
def test_thresholds_at_exact_powers(exact: int, ratio: int) -> None:
    """E · r^j, r whole, starts bucket E + j: not one later, as a rounded logarithm may have it."""
    starts = thresholds(2 * exact, exact * ratio**exact)
    assert starts[:exact] == tuple(range(1, exact + 1))
    assert starts[exact - 1 :] == tuple(exact * ratio**j for j in range(exact))


def test_bias_is_a_lookup_with_a_gradient() -> None:
    t5 = scheme(causal=True)
    positions = torch.arange(40)[None]
    bias = t5.bias(PositionContext(positions, positions, causal=True, contiguous=True))
    distance = positions[0, :, None] - positions[0]
    values = bias.of_distance(distance)
    assert values.shape == (models.HEADS, 40, 40)
    assert values.dtype == torch.float32
    assert torch.equal(values[2, 30, 3], t5.table.weight[t5.bucket(torch.tensor(27)), 2])
    values.sum().backward()
    counts = torch.bincount(t5.bucket(distance).flatten(), minlength=32)
    assert torch.equal(t5.table.weight.grad[:, 0], counts.float())
