"""Rounding errors of low precision, against known ones."""

from __future__ import annotations

import math

import pytest
import torch

from hf_posenc.insight.properties import Rounded, measure_precision
from hf_posenc.insight.properties.precision import to_int8

MILLION = 1_000_000


@pytest.fixture(scope="module")
def errors() -> dict[tuple[str, str, int], Rounded]:
    found = measure_precision(["rope", "alibi", "integer", "learned", "randpos"])
    return {(one.scheme, one.kind, one.start): one for one in found}


@pytest.mark.parametrize("scheme", ["rope", "alibi"])
@pytest.mark.parametrize(("kind", "digits"), [("fp32", 24), ("fp16", 11), ("bf16", 8)])
def test_relative_schemes_lose_no_more_at_a_million(errors: dict, scheme: str, kind: str, digits: int) -> None:
    """A few units in the last place of the type, wherever the text begins."""
    near, far = (errors[scheme, kind, start].scores for start in (0, MILLION))
    assert 0.05 * 2**-digits < near < 20 * 2**-digits
    assert far == pytest.approx(near, rel=0.3)


def test_positions_in_bfloat16_collide_from_257_on(errors: dict) -> None:
    assert errors["rope", "positions", 0].scores < 1e-6
    assert errors["rope", "positions", 4096].scores > 0.3
    assert torch.tensor([256, 257]).to(torch.bfloat16).unique().numel() == 1


def test_integer_positions_dominate_embeddings_in_low_precision(errors: dict) -> None:
    """At a million, one part in 2²⁴ of the number is a sixteenth of a word; float16 ends at 65 504."""
    assert errors["integer", "fp32", MILLION].scores > 1e4 * errors["integer", "fp32", 0].scores
    assert errors["integer", "bf16", 4096].scores > 0.9
    assert errors["integer", "fp16", MILLION].scores == math.inf


def test_no_number_where_the_scheme_ends(errors: dict) -> None:
    ended = errors["learned", "bf16", 4096]
    assert ended.scores is None
    assert "positions of scheme 'learned'" in ended.reason


def test_random_positions_are_seeded(errors: dict) -> None:
    assert errors["randpos", "fp32", 0].scores < 1e-6


def test_whole_numbers_of_eight_bits() -> None:
    x = torch.randn(50, 32, generator=torch.Generator().manual_seed(0))
    step = x.abs().amax(-1, keepdim=True) / 127
    assert float(((to_int8(x) - x).abs() / step).max()) <= 0.5 + 1e-4
    assert (to_int8(x) / step).round().unique().numel() <= 255
