"""`torch.compile(fullgraph=True)` reads what eager mode reads."""

from __future__ import annotations

import math

import pytest

from hf_posenc import checks
from hf_posenc.checks import Case

from .matrix import BY_HOOK, EVERY


def check(pair: Case) -> None:
    if math.isinf(pair.limit("compiled")):
        pytest.xfail("an exception of hf_posenc.checks.tolerances")
    gap = checks.compiled_equals_eager(pair)
    assert not gap.failed, gap


@pytest.mark.parametrize("pair", [pair for pair in BY_HOOK if pair.model_name != "bert_decoder"], ids=str)
def test_compiled_equals_eager(pair: Case) -> None:
    """A BERT decoder shares its modules with BERT and its masks with GPT-2: left to the full matrix."""
    check(pair)


@pytest.mark.full
@pytest.mark.parametrize("pair", EVERY, ids=str)
def test_every_pair_compiles(pair: Case) -> None:
    check(pair)
