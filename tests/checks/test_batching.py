"""A text on its own equals the text in a batch, padded by any width on either side."""

from __future__ import annotations

import pytest

from hf_posenc import checks
from hf_posenc.checks import Case
from hf_posenc.checks.batching import SIDES, Side

from .case_lists import DETERMINISTIC

MAX_WIDTH = 17  # one more than a block of the flash kernels


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", DETERMINISTIC, ids=str)
def test_single_equals_batched(case: Case, side: Side) -> None:
    deviation = checks.single_equals_batched(case, side)
    assert deviation <= case.tolerance("batch"), deviation


@pytest.mark.parametrize("width", [1, pytest.param(MAX_WIDTH, marks=pytest.mark.slow)])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", DETERMINISTIC, ids=str)
def test_padding_has_no_effect(case: Case, side: Side, width: int) -> None:
    deviation = checks.padding_has_no_effect(case, side, width)
    assert deviation <= case.tolerance("padding"), deviation
