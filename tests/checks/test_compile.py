"""`torch.compile(fullgraph=True)` equals eager mode."""

from __future__ import annotations

import math

import pytest

from hf_posenc import checks
from hf_posenc.checks import Case

from .case_lists import ALL_CASES, ONE_PER_HOOKS


def check(case: Case) -> None:
    if math.isinf(case.tolerance("torch_compile")):
        pytest.xfail("a known deviation of hf_posenc.checks.tolerances")
    deviation = checks.compiled_equals_eager(case)
    assert not deviation.failed, deviation


@pytest.mark.parametrize("case", [case for case in ONE_PER_HOOKS if case.model_name != "bert_decoder"], ids=str)
def test_compiled_equals_eager(case: Case) -> None:
    """A BERT decoder shares its modules with BERT and its masks with GPT-2: left to the full matrix."""
    check(case)


@pytest.mark.full
@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_every_case_compiles(case: Case) -> None:
    check(case)
