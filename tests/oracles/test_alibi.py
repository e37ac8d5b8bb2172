"""ALiBi's slopes and rows against BLOOM's and MPT's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.positions import PositionContext
from hf_posenc.schemes.alibi import ALiBi
from hf_posenc.terms import KeyBias, ToeplitzBias

from . import hosts

HEADS = [1, 2, 6, 8, 12, 16, 20]


def key_bias(heads: int, positions: Tensor, **options: object) -> Tensor:
    scheme = ALiBi(hosts.geometry(heads=heads), **options)
    bias = scheme.bias(PositionContext(positions, positions, causal=True, contiguous=True))
    assert isinstance(bias, KeyBias)
    return bias.values


def spread(rows: Tensor) -> float:
    """How far rows are from one constant each."""
    return float((rows - rows.mean(-1, keepdim=True)).abs().max())


@pytest.mark.parametrize("heads", HEADS)
def test_rows_equal_bloom_and_mpt(heads: int) -> None:
    """Up to one number a row, which softmax does not see."""
    length = 50
    ours = key_bias(heads, torch.arange(length)[None])[0]
    bloom = build_alibi_tensor(torch.ones(1, length, dtype=torch.long), heads, torch.float32)[:, 0]
    mpt = build_mpt_alibi_tensor(heads, length)[:, 0]
    assert spread(ours - bloom) < 1e-5
    assert spread(ours - mpt) < 1e-5


def test_left_padding_counts_real_tokens_as_bloom() -> None:
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [1] * 8])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    ours = key_bias(8, positions)
    bloom = build_alibi_tensor(mask, 8, torch.float32).view(2, 8, 8)
    for sample, real in enumerate(mask.bool()):
        assert spread((ours[sample] - bloom[sample])[:, real]) < 1e-5


@pytest.mark.parametrize("heads", [6, 12, 20])
def test_plain_geometric_slopes_are_others(heads: int) -> None:
    """Control: the two rules agree on powers of two only."""
    positions = torch.arange(50)[None]
    assert spread(key_bias(heads, positions) - key_bias(heads, positions, slopes="geometric")) > 1.0
    assert spread(key_bias(8, positions) - key_bias(8, positions, slopes="geometric")) == 0.0


def test_both_sides_the_distance_counts() -> None:
    scheme = ALiBi(hosts.geometry(heads=4, causal=False))
    positions = torch.arange(30)[None]
    bias = scheme.bias(PositionContext(positions, positions, causal=False, contiguous=True))
    assert isinstance(bias, ToeplitzBias)
    matrix = bias.of_distance(positions[0, :, None] - positions[0])
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    expected = torch.stack([torch.tensor([[-m * abs(i - j) for j in range(30)] for i in range(30)]) for m in slopes])
    assert torch.equal(matrix, expected)
    assert torch.equal(matrix, matrix.mT)


def test_near_keys_keep_their_digits_far_out() -> None:
    """The steps between the newest keys are exact at 10⁶ tokens; counted from the first key they would not be."""
    length = 10**6
    positions = torch.arange(length)[None]
    newest = key_bias(8, positions)[0, :, -64:].diff(dim=-1)
    slopes = torch.tensor([2.0 ** -(h + 1) for h in range(8)])
    assert torch.equal(newest, slopes[:, None].expand(-1, 63))
    from_the_first = (torch.tensor(1 / 3) * positions[0, -64:]).diff()  # control: a slope that is no power of two
    assert (from_the_first - 1 / 3).abs().max() > 1e-3


def test_interpolation_divides_the_slopes() -> None:
    positions = torch.arange(40)[None]
    assert torch.equal(key_bias(8, positions, interpolate=4.0) * 4, key_bias(8, positions))


def test_a_list_must_fit_the_heads() -> None:
    assert torch.equal(key_bias(2, torch.arange(3)[None], slopes=[1.0, 0.0])[0, 0], torch.tensor([-2.0, -1.0, 0.0]))
    with pytest.raises(OptionOutOfRange, match="4 heads, got 2"):
        ALiBi(hosts.geometry(heads=4), slopes=[1.0, 0.5])
