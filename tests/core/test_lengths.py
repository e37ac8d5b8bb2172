"""Trained length, target length, factor: any two give the third, and three that disagree are refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_posenc.core.lengths import MAX_LENGTH, resolve_lengths
from hf_posenc.errors import LengthContradiction

TOKENS = st.integers(1, 2**20)
FACTORS = st.floats(1, 1000, allow_nan=False)


@given(trained=TOKENS, factor=FACTORS)
def test_factor_gives_the_target(trained: int, factor: float) -> None:
    lengths = resolve_lengths(configured=trained, factor=factor)
    assert lengths.trained == trained
    assert abs(lengths.target - trained * factor) <= 0.5


@given(trained=TOKENS, more=TOKENS)
def test_target_gives_the_factor(trained: int, more: int) -> None:
    lengths = resolve_lengths(configured=trained, target_length=trained + more)
    assert lengths.factor == (trained + more) / trained


@given(trained=TOKENS, factor=st.integers(1, 1000), off=st.integers(1, 1000))
def test_disagreement_is_refused(trained: int, factor: int, off: int) -> None:
    with pytest.raises(LengthContradiction, match="Give one of the two"):
        resolve_lengths(configured=trained, target_length=trained * factor + off, factor=factor)


@given(factor=st.one_of(st.floats(max_value=1, exclude_max=True), st.just(math.nan), st.just(math.inf)))
def test_factor_out_of_range_is_refused(factor: float) -> None:
    with pytest.raises(LengthContradiction, match="factor must be"):
        resolve_lengths(configured=8, factor=factor)


@given(value=st.one_of(st.integers(max_value=0), st.integers(MAX_LENGTH + 1), st.floats(), st.text(), st.booleans()))
def test_invalid_length_is_refused(value: object) -> None:
    for name in ("trained_length", "target_length"):
        with pytest.raises(LengthContradiction, match=r"whole number of tokens|at least the trained length"):
            resolve_lengths(configured=8, **{name: value})  # type: ignore[arg-type]


@given(trained=TOKENS, shorter=TOKENS)
def test_target_below_trained_is_refused(trained: int, shorter: int) -> None:
    if shorter < trained:
        with pytest.raises(LengthContradiction, match="window"):
            resolve_lengths(configured=trained, target_length=shorter)


def test_the_longest_length_is_what_32_bits_hold() -> None:
    assert resolve_lengths(configured=2_147_483_647).target == 2_147_483_647
    with pytest.raises(LengthContradiction, match="2147483648"):
        resolve_lengths(configured=2_147_483_648)


def test_the_largest_factor_is_a_million() -> None:
    assert resolve_lengths(configured=16, factor=1e6).target == 16_000_000
    with pytest.raises(LengthContradiction, match=r"from 1 to 1,000,000, got 1000000\.5"):
        resolve_lengths(configured=16, factor=1_000_000.5)
