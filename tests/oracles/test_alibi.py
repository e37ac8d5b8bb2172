"""ALiBi against BLOOM's and MPT's tensors, a whole BLOOM, and the authors' recipe for encoders."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from hf_posenc import patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import KeyBias, ToeplitzBias
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.bias.alibi import ALiBi

from . import content, models, naive

HEADS = [1, 2, 6, 8, 12, 16, 20]


def key_bias(heads: int, positions: Tensor, **options: object) -> Tensor:
    scheme = ALiBi(models.geometry(heads=heads), **options)
    bias = scheme.bias(PositionContext(positions, positions, causal=True, contiguous=True))
    assert isinstance(bias, KeyBias)
    return bias.values


@pytest.mark.parametrize("heads", HEADS)
def test_rows_equal_bloom_and_mpt(heads: int) -> None:
    """Up to one number a row, which softmax does not see."""
    length = 50
    ours = key_bias(heads, torch.arange(length)[None])[0]
    bloom = build_alibi_tensor(torch.ones(1, length, dtype=torch.long), heads, torch.float32)[:, 0]
    mpt = build_mpt_alibi_tensor(heads, length)[:, 0]
    assert content.spread(ours - bloom) < 1e-5
    assert content.spread(ours - mpt) < 1e-5


def test_left_padding_counts_real_tokens_as_bloom() -> None:
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [1] * 8])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    ours = key_bias(8, positions)
    bloom = build_alibi_tensor(mask, 8, torch.float32).view(2, 8, 8)
    for sample, real in enumerate(mask.bool()):
        assert content.spread((ours[sample] - bloom[sample])[:, real]) < 1e-5


@pytest.mark.parametrize("heads", [6, 12, 20])
def test_control_plain_geometric_slopes_differ(heads: int) -> None:
    """Control: the two rules agree on powers of two only."""
    positions = torch.arange(50)[None]
    assert content.spread(key_bias(heads, positions) - key_bias(heads, positions, slopes="geometric")) > 1.0
    assert content.spread(key_bias(8, positions) - key_bias(8, positions, slopes="geometric")) == 0.0


def test_encoders_use_the_absolute_distance() -> None:
    scheme = ALiBi(models.geometry(heads=4, causal=False))
    positions = torch.arange(30)[None]
    bias = scheme.bias(PositionContext(positions, positions, causal=False, contiguous=True))
    assert isinstance(bias, ToeplitzBias)
    matrix = bias.of_distance(positions[0, :, None] - positions[0])
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    expected = torch.stack([torch.tensor([[-m * abs(i - j) for j in range(30)] for i in range(30)]) for m in slopes])
    assert torch.equal(matrix, expected)
    assert torch.equal(matrix, matrix.mT)


def test_a_list_must_fit_the_heads() -> None:
    values = key_bias(2, torch.arange(3)[None], slopes=[1.0, 0.0])
    assert torch.equal(values[0, 0].diff(), torch.ones(2, dtype=values.dtype))
    assert not values[0, 1].any()
    with pytest.raises(OptionOutOfRange, match="4 heads, got 2"):
        ALiBi(models.geometry(heads=4), slopes=[1.0, 0.5])


def asymmetric(heads: int, length: int) -> Tensor:
    """The authors' non-symmetric option: slopes of half the heads, twice, and each half with a mask of its own."""
    distance = naive.distances(length)
    slopes = 2 * [2 ** (-8 * (h + 1) / (heads // 2)) for h in range(heads // 2)]
    bias = -torch.tensor(slopes, dtype=torch.float64)[:, None, None] * distance.abs()
    bias[: heads // 2, distance < 0] = -math.inf
    bias[heads // 2 :, distance > 0] = -math.inf
    return bias


def test_half_the_heads_look_back_and_half_ahead() -> None:
    ids, text = models.text(70), naive.both_ways(70)
    patched = patch_model(models.bert(), "alibi", bidirectional="asymmetric", target_length=70)
    expected = naive.bert(models.bert(), ids, replace(text, bias=asymmetric(models.HEADS, 70)))
    assert (models.logits(patched, ids) - expected).abs().max() <= 1e-4
    mirrored = naive.bert(models.bert(), ids, replace(text, bias=asymmetric(models.HEADS, 70).mT))  # control
    assert (mirrored - expected).abs().max() > 1e-2


def test_learned_slopes_start_as_released_and_stay_positive() -> None:
    scheme = ALiBi(models.geometry(heads=12), slopes="learned")
    positions = torch.arange(50)[None]
    ctx = PositionContext(positions, positions, causal=True, contiguous=True)
    assert torch.allclose(scheme.bias(ctx).values, key_bias(12, positions), rtol=1e-6)
    torch.nn.init.normal_(scheme.log_slopes, std=3.0)
    values = scheme.bias(ctx).values
    assert (values.diff() > 0).all()
    values.sum().backward()
    assert (scheme.log_slopes.grad != 0).all()


def test_distances_of_regions_are_not_those_of_keys() -> None:
    """Where a remap moves tokens, a key has no bias of its own any more."""
    scheme, positions = ALiBi(models.geometry(heads=2), slopes=[0.5, 0.25]), torch.arange(9)[None]
    bias = scheme.bias(PositionContext(positions, positions, causal=True, contiguous=True, remapped=True))
    assert isinstance(bias, ToeplitzBias)
    assert torch.equal(
        bias.of_distance(torch.tensor([0.0, 1.5, 6.0])), torch.tensor([[0, -0.75, -3], [0, -0.375, -1.5]])
    )
