"""Integer, norm01, binary and sinusoidal codes against closed forms and RoFormer's table, and what LayerNorm leaves."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor
from transformers import StaticCache
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

from hf_posenc import patch_model, scheme_of
from hf_posenc.errors import NeedsWholeText, OptionOutOfRange, PositionOutOfTable
from hf_posenc.schemes.absolute.binary import Binary
from hf_posenc.schemes.absolute.integer import Integer
from hf_posenc.schemes.absolute.norm01 import Norm01
from hf_posenc.schemes.absolute.sinusoidal import Sinusoidal
from hf_posenc.schemes.base import Scheme

from . import models
from .models import TRAINED, WIDTH

ROUNDING = (
    2e-3  # what a LayerNorm leaves of a constant 30 times the embeddings' size, behind two layers of sharp softmax
)


def codes(scheme: Scheme, positions: list[int] | range) -> Tensor:
    """``[position, width]``, float64."""
    return scheme.embed(torch.tensor([list(positions)]))[0].double()  # type: ignore[union-attr]


def digits(position: int, width: int = 8) -> list[int]:
    """As they are written, highest first."""
    return [int(digit) for digit in format(position, f"0{width}b")]


def test_random_directions_are_the_same_everywhere_and_not_constant() -> None:
    one, two = (codes(Integer(models.geometry(), direction="random"), [1])[0] for _ in range(2))
    assert torch.equal(one, two)
    assert one.abs().tolist() == [1.0] * WIDTH
    assert abs(one.mean()) < 0.5
    assert one[:8].tolist() == [-1, -1, 1, 1, -1, 1, -1, 1]  # on every machine: saved models rely on it


def test_step_depends_on_the_text_length() -> None:
    """1/2 in a text of three tokens, 1/3 in one of four; with a fixed n the same in both."""
    steps = [float(codes(Norm01(models.geometry()), range(n))[:, 0].diff()[0]) for n in (3, 4)]
    assert steps == pytest.approx([1 / 2, 1 / 3])
    fixed = [codes(Norm01(models.geometry(), n=11), range(n))[:, 0] for n in (3, 4)]
    assert fixed[0].tolist() == pytest.approx([0.0, 0.1, 0.2])
    assert torch.equal(fixed[0], fixed[1][:3])
    assert codes(Norm01(models.geometry()), [0]).tolist() == [[0.0] * WIDTH]  # N = 1
    assert float(codes(Norm01(models.geometry(), alpha=3.0), range(5))[-1, 0]) == 3.0


def test_every_text_of_a_batch_has_its_own_length() -> None:
    """Padding on either side counts for nothing, documents in one row count for themselves."""
    rows = torch.tensor([[0, 0, 0, 1, 2, 3], [0, 1, 2, 2, 2, 2], [0, 1, 0, 1, 2, 3]])
    share = Norm01(models.geometry()).embed(rows)[..., 0]
    assert share[0, 2:].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert share[1, :3].tolist() == pytest.approx([0, 1 / 2, 1])
    assert share[2].tolist() == pytest.approx([0, 1, 0, 1 / 3, 2 / 3, 1])


def test_norm01_refuses_to_continue_a_text() -> None:
    ids = models.text(6)[None]
    model = patch_model(models.llama(), "norm01")
    with pytest.raises(NeedsWholeText):
        model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    read_anew = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0, use_cache=False)
    assert read_anew.shape == (1, 9)
    for step in range(3):  # each token from the whole text as it then was
        assert model(read_anew[:, : 6 + step]).logits[0, -1].argmax() == read_anew[0, 6 + step]
    counting = StaticCache(config=model.config, max_cache_len=TRAINED)  # counts its tokens in a tensor
    model(ids, past_key_values=counting)
    with pytest.raises(NeedsWholeText, match="6 tokens"):
        model(ids[:, :1], past_key_values=counting)
    fixed = patch_model(models.llama(), "norm01", n=TRAINED)
    outputs = [
        fixed.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0, use_cache=c) for c in (True, False)
    ]
    assert torch.equal(*outputs)


def test_binary_digits_have_the_least_significant_first() -> None:
    scheme = Binary(models.geometry(), width=8, msb_first=True)
    assert codes(scheme, [252])[0, :8].tolist() == [1, 1, 1, 1, 1, 1, 0, 0]
    assert codes(scheme, range(256))[:, :8].tolist() == [digits(p) for p in range(256)]
    lowest_first = codes(Binary(models.geometry(), width=8), range(256))
    assert lowest_first[:, :8].tolist() == [digits(p)[::-1] for p in range(256)]
    assert not lowest_first[:, 8:].any()
    signed = codes(Binary(models.geometry(), width=8, values="pm1", alpha=0.5), range(256))
    assert torch.equal(signed[:, :8], lowest_first[:, :8] - 0.5)
    assert not signed[:, 8:].any()


def test_binary_refuses_positions_beyond_its_digits() -> None:
    scheme = Binary(models.geometry(), width=5)
    assert scheme.longest == 32
    with pytest.raises(PositionOutOfTable, match="Position 32 is past the 32 positions"):
        codes(scheme, [32])
    with pytest.raises(OptionOutOfRange, match="ends after 64 positions"):
        patch_model(models.gpt2(), "binary", width=6, factor=4)
    with pytest.raises(OptionOutOfRange, match="at most the model's 64 channels, got 65"):
        Binary(models.geometry(), width=65)
    assert Binary(models.geometry(width=4)).longest == 16
    assert Binary(models.geometry()).longest is None


@pytest.mark.parametrize("name", ["integer", "norm01"])
@pytest.mark.parametrize("model", models.MODELS)
def test_layer_norm_takes_a_constant_direction_away(name: str, model: str) -> None:
    """GPT-2 and BERT never see the textbooks' code: their first norm subtracts it. Llama's RMSNorm does not."""
    build, _ = models.MODELS[model]
    ids = models.text(TRAINED)
    without = models.logits(patch_model(build(), "none"), ids)
    ones = (models.logits(patch_model(build(), name), ids) - without).abs().max()
    signs = (models.logits(patch_model(build(), name, direction="random"), ids) - without).abs().max()
    assert signs > 0.1  # control: not constant, and seen by all
    if model == "llama":
        assert ones > 0.1
    else:
        assert ones < ROUNDING
        assert scheme_of(patch_model(build(), name)).may_vanish


DISTANCES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
# Normalised inner products at these distances, width 128.
GEOMETRIC = [0.970, 0.897, 0.759, 0.714, 0.620, 0.557, 0.477, 0.333, 0.321]
LINEAR = [0.840, 0.452, -0.184, 0.128, -0.017, 0.031, 0.024, 0.006, 0.011]


def sinusoids(positions: list[int] | range, width: int = 128, **options: object) -> Tensor:
    scheme = Sinusoidal(models.geometry(width=width), **options)  # type: ignore[arg-type]
    return scheme.embed(torch.tensor([list(positions)]))[0].double()


@pytest.mark.parametrize("width", [1, 2, 6, 7, 64, 129])
def test_equals_roformer(width: int) -> None:
    theirs = RoFormerSinusoidalPositionalEmbedding(500, width).create_weight().double()
    assert (sinusoids(range(500), width, layout="concat") - theirs).abs().max() < 1e-6
    interleaved = [m // 2 if m % 2 == 0 else (width + 1) // 2 + m // 2 for m in range(width)]
    assert (sinusoids(range(500), width) - theirs[:, interleaved]).abs().max() < 1e-6


@pytest.mark.parametrize(("kind", "silent"), [("sin", 1), ("cos", 0)])
def test_half_codes_leave_the_other_half_zero(kind: str, silent: int) -> None:
    both, half = sinusoids(range(50), 64), sinusoids(range(50), 64, kind=kind)
    assert not half[:, silent::2].any()
    assert torch.equal(half[:, 1 - silent :: 2], both[:, 1 - silent :: 2])


@pytest.mark.parametrize(("schedule", "expected"), [("geometric", GEOMETRIC), ("linear", LINEAR)])
def test_schedules(schedule: str, expected: list[float]) -> None:
    code = sinusoids([0, *DISTANCES], schedule=schedule)
    products = (code[1:] @ code[0] / (code[0] @ code[0])).tolist()
    assert products == pytest.approx(expected, abs=6e-4)


def test_base_scale_and_reverse() -> None:
    plain = sinusoids(range(100), 64)
    assert torch.allclose(sinusoids(range(100), 64, scale=0.5) * 2, plain)
    pairs = sinusoids(range(100), 64, reverse=True).unflatten(-1, (-1, 2)).flip(1).flatten(1)
    assert torch.equal(pairs, plain)
    quick = sinusoids([3], 64, base=100.0)[0, 2::2]
    expected = [float(mpmath.sin(3 * mpmath.mpf(100) ** (-mpmath.mpf(2 * m) / 64))) for m in range(1, 32)]
    assert quick.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("position", [10**5, 10**6])
def test_far_positions(position: int) -> None:
    code = sinusoids([position], 64)[0]
    low = torch.tensor(position) * 10_000.0 ** (-torch.arange(0, 64, 2) / 64)  # control: float32 angles
    worst = 0.0
    with mpmath.workdps(40):
        for m in range(32):
            angle = position * mpmath.mpf(10_000) ** (-mpmath.mpf(2 * m) / 64)
            assert abs(mpmath.sin(angle) - float(code[2 * m])) < 1e-7
            assert abs(mpmath.cos(angle) - float(code[2 * m + 1])) < 1e-7
            worst = max(worst, abs(float(mpmath.sin(angle)) - float(low[m].sin())))
    assert worst > 1e-3


@pytest.mark.parametrize("width", [7, 64])
def test_custom_frequencies(width: int) -> None:
    """One's own schedule: the geometric one by hand is equal; a single pair rotates by the given frequency."""
    pairs = (width + 1) // 2
    by_hand = [10_000.0 ** (-2 * m / width) for m in range(pairs)]
    assert torch.equal(sinusoids(range(50), width, schedule="custom", frequencies=by_hand), sinusoids(range(50), width))
    rotating = sinusoids([0, 1, 2, 3], width, schedule="custom", frequencies=[math.pi / 2] * pairs)
    assert rotating[:, 0].tolist() == pytest.approx([0, 1, 0, -1], abs=1e-6)
    assert rotating[:, 1].tolist() == pytest.approx([1, 0, -1, 0], abs=1e-6)
    up = sinusoids([5], width, schedule="custom", frequencies=by_hand, reverse=True)
    down = sinusoids([5], width, schedule="custom", frequencies=by_hand[::-1])
    assert torch.equal(up, down)
