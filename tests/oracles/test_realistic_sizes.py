"""Rotary scalings at the sizes of released models: against transformers, and the formulas in float64.

A small geometry leaves most of a formula unused: with 8 pairs and a trained length of 32 a ramp begins and ends beyond
the pairs there are, and no clamp ever holds. Sizes are drawn from those of real checkpoints and from all between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from hf_posenc import patch_model
from hf_posenc.core.context import PositionContext
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.absolute.text_length import text_lengths
from hf_posenc.schemes.registry import scheme_class
from hf_posenc.schemes.rotary.dynamic_ntk import DynamicNTK
from hf_posenc.schemes.rotary.dynamic_yarn import DynamicYarn
from hf_posenc.schemes.rotary.llama3 import Llama3
from hf_posenc.schemes.rotary.longrope import LongRoPE
from hf_posenc.schemes.rotary.rotary import Rotary
from hf_posenc.schemes.rotary.yarn import NTKByParts, Yarn

from . import models, naive
from .naive import rope

EXACT = 1e-11  # two orders of the same float64 operations
FLOAT32 = 5e-6  # transformers takes the powers of the base in float32


class Size(NamedTuple):
    """Of a head, and of the lengths."""

    dims: int
    trained: int
    base: float
    factor: float

    @property
    def target(self) -> int:
        return round(self.trained * self.factor)

    @property
    def stretch(self) -> float:
        """The factor between whole lengths."""
        return self.target / self.trained


RELEASED = {
    "llama 2, 32k": Size(128, 4096, 1e4, 8.0),
    "llama 3.1": Size(128, 8192, 5e5, 8.0),
    "llama 3.2": Size(64, 8192, 5e5, 32.0),
    "llama 3.1, once more": Size(128, 131_072, 5e5, 32.0),
    "long, small base": Size(128, 131_072, 1e4, 4.0),
    "gpt-oss": Size(64, 4096, 1.5e5, 32.0),
    "deepseek v3": Size(64, 4096, 1e4, 40.0),
    "phi 3": Size(96, 4096, 1e4, 32.0),
    "qwen 2.5": Size(128, 32_768, 1e6, 4.0),
    "short, small base": Size(64, 2048, 500.0, 2.0),
}
SIZES = st.builds(
    Size,
    st.sampled_from([64, 80, 96, 112, 128, 160, 192, 256]),
    st.sampled_from([2048, 4096, 8192, 32_768, 131_072, 1_048_576]) | st.integers(512, 300_000),
    st.sampled_from([1e4, 1.5e5, 5e5, 1e6, 1e7]) | st.floats(100.0, 1e8),
    st.sampled_from([1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 40.0, 64.0]),
)


def every_size(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test of ``size`` on the released sizes, and on some drawn."""
    for size in RELEASED.values():
        test = example(size=size)(test)
    return settings(max_examples=40)(given(size=SIZES)(test))


def geometry(size: Size, **more: Any) -> Any:
    return models.geometry(head_dim=size.dims, trained=size.trained, target=size.target, base=size.base, **more)


def ours(name: str, size: Size, **options: Any) -> Tensor:
    return torch.tensor(scheme_class(name)(geometry(size), **options).frequencies(), dtype=torch.float64)


def theirs(kind: str, size: Size, length: int | None = None, **numbers: Any) -> tuple[Tensor, float]:
    """transformers' frequencies and the factor of its cosines and sines."""
    scaling = {"rope_type": kind, "rope_theta": size.base, "factor": size.stretch, **numbers}
    trained = kind == "dynamic"  # where it looks for the length it was trained for
    if not trained:
        scaling["original_max_position_embeddings"] = size.trained
    config = LlamaConfig(
        hidden_size=size.dims, num_attention_heads=1, head_dim=size.dims, rope_parameters=scaling,
        max_position_embeddings=size.trained if trained else size.target,
    )  # fmt: skip
    more = {} if length is None else {"seq_len": length}
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), **more)
    return frequencies.double(), factor


def apart(one: Tensor, two: Tensor) -> float:
    """Largest relative difference; zeros must be the same zeros."""
    assert torch.equal(one == 0, two == 0)
    rotating = two != 0
    return float((one[rotating] / two[rotating] - 1).abs().max()) if rotating.any() else 0.0


def larger_base(size: Size, stretch: float) -> Tensor:
    """NTK-aware: base · s^(d / (d − 2))."""
    return rope(size.dims, size.base * stretch ** (size.dims / (size.dims - 2)))


def ramp(size: Size, fast: float, slow: float, *, truncate: bool = True) -> Tensor:
    """YaRN's γ: 0 up to the pair that turns ``fast`` times in the trained length, 1 from that of ``slow`` turns on."""
    low, high = (
        size.dims * math.log(size.trained / (2 * math.pi * turns)) / (2 * math.log(size.base)) for turns in (fast, slow)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size.dims - 1)
    pairs = torch.arange(size.dims // 2, dtype=torch.float64)
    return ((pairs - low) / (high - low if high != low else 0.001)).clamp(0, 1)


def by_parts(size: Size, fast: float = 32.0, slow: float = 1.0, *, truncate: bool = True) -> Tensor:
    """(1 − γ) ω + γ ω / s."""
    slowed, plain = ramp(size, fast, slow, truncate=truncate), rope(size.dims, size.base)
    return (1 - slowed) * plain + slowed * plain / size.stretch


def first_release(size: Size) -> Tensor:
    """NTK-by-parts of the first release: a larger base between two ramps."""
    plain, inner = rope(size.dims, size.base), ramp(size, 1.25, 0.75)
    mixed = inner * plain / size.stretch + (1 - inner) * larger_base(size, size.stretch)
    outer = ramp(size, 16.0, 2.0)
    return outer * mixed + (1 - outer) * plain


def llama3(size: Size, low: float = 1.0, high: float = 4.0) -> Tensor:
    """As Meta's code has it: three cases by wavelength."""
    found = []
    for w in rope(size.dims, size.base).tolist():
        turns = size.trained / (2 * math.pi / w)
        if turns < low:
            found.append(w / size.stretch)
        elif turns > high:
            found.append(w)
        else:
            smooth = (turns - low) / (high - low)
            found.append((1 - smooth) * w / size.stretch + smooth * w)
    return torch.tensor(found, dtype=torch.float64)


FORMULAS: dict[str, Callable[[Size], Tensor]] = {
    "rope": lambda size: rope(size.dims, size.base),
    "abf": lambda size: rope(size.dims, 500_000.0),
    "pi": lambda size: rope(size.dims, size.base) / size.stretch,
    "ntk": lambda size: larger_base(size, size.stretch),
    "ntk_parts": by_parts,
    "yarn": by_parts,
    "ntk_parts_v1": first_release,
    "llama3": llama3,
    "proportional": lambda size: torch.where(
        torch.arange(size.dims // 2) < 3 * size.dims // 8, rope(size.dims, size.base) / size.stretch, 0.0
    ),
    "longrope": lambda size: rope(size.dims, size.base),
}


@pytest.mark.parametrize("name", FORMULAS)
@every_size
def test_formula(name: str, size: Size) -> None:
    assert apart(ours(name, size), FORMULAS[name](size)) < EXACT


@every_size
def test_dynamic_ntk_is_transformers_at_every_length(size: Size) -> None:
    """transformers takes one length for a call; a row's own length is ours."""
    for multiplier in (1.0, size.factor):
        scheme = DynamicNTK(geometry(size), multiplier=multiplier)
        for share in (0.5, 1.0, 1.01, size.factor / 2, size.factor):
            length = round(share * size.trained)
            own = int(scheme.length_of(torch.tensor([length - 1])))
            found = torch.tensor(scheme.rotation_of(own).frequencies, dtype=torch.float64)
            stretch = 1 + multiplier * (max(length, size.trained) / size.trained - 1)
            assert apart(found, larger_base(size, stretch)) < EXACT
            frequencies, _ = theirs("dynamic", size, length, factor=multiplier)
            assert apart(found, frequencies) < 2 * FLOAT32  # a base beyond 10⁹ has fewer digits to spare


@every_size
def test_longrope_is_transformers_on_either_side_of_the_trained_length(size: Size) -> None:
    pairs = size.dims // 2
    short, long = ([1 + m * most / pairs for m in range(pairs)] for most in (0.3, size.factor - 1))
    scheme = LongRoPE(geometry(size), short_factor=short, long_factor=long)
    for length, factors in ((size.trained, short), (size.trained + 1, long)):
        found = torch.tensor(scheme.rotation_of(length).frequencies, dtype=torch.float64)
        assert apart(found, rope(size.dims, size.base) / torch.tensor(factors, dtype=torch.float64)) < EXACT
        frequencies, factor = theirs("longrope", size, length, short_factor=short, long_factor=long)
        assert apart(found, frequencies) < FLOAT32
        assert scheme.logit_scale() == pytest.approx(factor**2, rel=1e-9)
    by_default = torch.tensor(LongRoPE(geometry(size)).long_frequencies(), dtype=torch.float64)
    assert apart(by_default, by_parts(size)) < EXACT


@every_size
def test_yarn_with_its_options(size: Size) -> None:
    plain = ours("yarn", size)
    for options in ({"beta_fast": 24.0, "beta_slow": 3.0}, {"truncate": False}):
        frequencies, _ = theirs("yarn", size, **options)
        found = ours("yarn", size, **options)
        assert apart(found, frequencies) < FLOAT32
        given = {"fast": options.get("beta_fast", 32.0), "slow": options.get("beta_slow", 1.0)}
        assert apart(found, by_parts(size, **given, truncate=options.get("truncate", True))) < EXACT
        assert not torch.equal(found, plain)  # control: the option does something


@every_size
def test_ramp_in_rotations(size: Size) -> None:
    """The paper's own ramp, equations 17 and 18: γ falls linearly from 1 at α turns to 0 at β turns."""
    turns = size.trained * rope(size.dims, size.base) / (2 * math.pi)
    slowed = 1 - ((turns - 1) / 31).clamp(0, 1)
    expected = (1 - slowed) * rope(size.dims, size.base) + slowed * rope(size.dims, size.base) / size.stretch
    assert apart(ours("ntk_parts", size, ramp="rotations"), expected) < EXACT


@pytest.mark.parametrize("name", ["rope", "pi", "ntk", "ntk_parts_v1", "yarn", "llama3", "proportional"])
@pytest.mark.parametrize("released", ["llama 3.1, once more", "long, small base"])
def test_whole_model_with_tokens_far_apart(name: str, released: str) -> None:
    """A Llama of heads of 128 channels, its tokens spread over the whole target length, from the definition."""
    size = RELEASED[released]
    positions = torch.tensor([0, 1, 3, 700, 701, 5000, 131_071, 131_072, size.target - 300, size.target - 1])
    shape = {"head_dim": size.dims, "num_attention_heads": 2, "num_key_value_heads": 1}
    parameters = {"rope_type": "default", "rope_theta": size.base}
    plain = models.llama(**shape, max_position_embeddings=size.trained, rope_parameters=parameters)
    ids = models.text(len(positions))
    distance = positions[:, None] - positions[None, :]
    scale = (0.1 * math.log(size.factor) + 1) ** 2 if name == "yarn" else 1.0
    read = naive.Positions(distance >= 0, distance, FORMULAS[name](size), logit_scale=scale)
    expected = naive.llama(plain, ids, read)
    model = patch_model(plain, name, factor=size.factor)
    given = {"position_ids": positions[None], "attention_mask": torch.ones(1, len(positions), dtype=torch.long)}
    with torch.no_grad():
        found = model(ids[None], use_cache=False, **given).logits[0].double()
    assert (found - expected).abs().max() < 1e-4
    unlike = naive.Positions(distance >= 0, distance, FORMULAS[name](size._replace(factor=1.5 * size.factor)))
    if name != "rope":
        assert (naive.llama(plain, ids, unlike) - expected).abs().max() > 1e-2  # control: another factor


@every_size
def test_dynamic_yarn_is_transformers_yarn_of_every_length(size: Size) -> None:
    """transformers has one factor for a model; at each length, ours is that of a model scaled to it."""
    scheme = DynamicYarn(geometry(size))
    for share in (0.5, 1.0, 1.01, size.factor / 2, size.factor):
        length = max(round(share * size.trained), size.trained)
        found = torch.tensor(scheme.rotation_of(length).frequencies, dtype=torch.float64)
        here = size._replace(factor=length / size.trained)
        assert apart(found, by_parts(here)) < EXACT
        frequencies, factor = theirs("yarn", here)
        assert apart(found, frequencies) < FLOAT32
        assert apart(scheme.frequencies_of(torch.tensor([[length]]))[0, 0], found) < EXACT
        position = torch.tensor([[length - 1]])
        ctx = PositionContext(position, position, causal=True, contiguous=False)
        assert float(scheme.row_scale(ctx)) == pytest.approx(factor**2, rel=1e-5)


def test_texts_packed_into_one_row_have_lengths_of_their_own() -> None:
    """Counted by hand; padding repeats a position."""
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3], [0, 0, 0, 1, 2, 3, 4, 5, 6], [5, 6, 2, 3, 4, 5, 6, 7, 8]])
    expected = torch.tensor([[3, 3, 3, 2, 2, 4, 4, 4, 4], [1, 1, 7, 7, 7, 7, 7, 7, 7], [7] * 2 + [9] * 7])
    assert torch.equal(text_lengths(positions), expected)


WRONG: list[tuple[type[Rotary], dict[str, float]]] = [
    (Llama3, {"low_freq_factor": 4.0, "high_freq_factor": 4.0}),
    (NTKByParts, {"beta_fast": 1.0, "beta_slow": 2.0}),
    (Yarn, {"mscale": 1.0}),
    (Yarn, {"mscale_all_dim": 1.0}),
    (Yarn, {"mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 1.2}),
]


@pytest.mark.parametrize(("scheme", "options"), WRONG, ids=str)
def test_bounds_the_wrong_way_round_and_half_a_temperature_or_two_are_refused(
    scheme: type[Rotary], options: dict[str, float]
) -> None:
    with pytest.raises(OptionOutOfRange, match=r"must be greater than|mscale"):
        scheme(models.geometry(), **options)


@pytest.mark.parametrize("size", RELEASED.values(), ids=RELEASED)
@pytest.mark.parametrize("name", ["rope", "abf", "proportional", "pi", "ntk", "ntk_parts", "yarn", "llama3"])
def test_exported_rope_parameters_mean_the_same_in_transformers(name: str, size: Size) -> None:
    """An unpatched Llama of the exported `rope_parameters` turns and sharpens as the scheme does."""
    scheme = scheme_class(name)(geometry(size))
    config = LlamaConfig(
        hidden_size=2 * size.dims, num_attention_heads=2, head_dim=size.dims, max_position_embeddings=size.target,
        rope_parameters=scheme.native(),
    )  # fmt: skip
    theirs = LlamaRotaryEmbedding(config)
    expected = torch.zeros(size.dims // 2, dtype=torch.float64)
    expected[: len(theirs.inv_freq)] = theirs.inv_freq.double()
    assert apart(torch.tensor(scheme.frequencies(), dtype=torch.float64), expected) < FLOAT32
    assert scheme.logit_scale() == pytest.approx(theirs.attention_scaling**2, rel=1e-9)
