"""Checks: other rows and padding must not show in a row's logits."""

from __future__ import annotations

import pytest

from hf_posenc import checks
from hf_posenc.checks import Case
from hf_posenc.checks.batching import SIDES, Side

from .matrix import COMPANIONS

MOST = 17  # one more than a block of the flash kernels


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("pair", COMPANIONS, ids=str)
def test_alone_equals_batched(pair: Case, side: Side) -> None:
    gap = checks.alone_equals_batched(pair, side)
    assert gap <= pair.limit("batch"), gap


@pytest.mark.parametrize("width", [1, MOST])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("pair", COMPANIONS, ids=str)
def test_padding_is_invisible(pair: Case, side: Side, width: int) -> None:
    gap = checks.padding_is_invisible(pair, side, width)
    assert gap <= pair.limit("padding"), gap


@pytest.mark.full
@pytest.mark.parametrize("width", range(2, MOST))
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("pair", COMPANIONS, ids=str)
def test_every_width_of_padding(pair: Case, side: Side, width: int) -> None:
    gap = checks.padding_is_invisible(pair, side, width)
    assert gap <= pair.limit("padding"), gap
