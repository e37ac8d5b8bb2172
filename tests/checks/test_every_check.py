"""Every registered scheme passes every check, on every tiny model for which it is defined."""

from __future__ import annotations

import pytest

from hf_posenc import checks
from hf_posenc.checks import CHECKS, Case

from .case_lists import ALL_CASES, ONE_PER_HOOKS, QUICK

# `formula` has a test of its own below, `torch_compile` a file.
SLOW = [name for name, check in CHECKS.items() if check.slow and name not in ("formula", "torch_compile")]
SLOWEST = (  # many forward passes, or a compiler
    *("continuous_batching", "torch_export", "memory_leaks", "recompilation", "options", "finite_differences"),
)
CHOSEN = [(check, case) for check in SLOW for case in (QUICK[::4] if check in SLOWEST else QUICK)]
LEFT_OUT = [
    pytest.param(case, marks=pytest.mark.slow if case in ONE_PER_HOOKS else pytest.mark.full, id=str(case))
    for case in ALL_CASES
    if case not in QUICK
]
fast = pytest.mark.parametrize("check", [name for name, check in CHECKS.items() if not check.slow])


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_logits_are_those_of_the_formula(case: Case) -> None:
    """Of every scheme on every model, against the attention of its definition in float64."""
    checks.assert_passes("formula", case)


@fast
@pytest.mark.parametrize("case", QUICK, ids=str)
def test_check(check: str, case: Case) -> None:
    """On one scheme of each combination of hooks."""
    checks.assert_passes(check, case)


@fast
@pytest.mark.parametrize("case", LEFT_OUT)
def test_check_of_the_others(check: str, case: Case) -> None:
    checks.assert_passes(check, case)


@pytest.mark.slow
@pytest.mark.parametrize(("check", "case"), CHOSEN, ids=str)
def test_slow_check(check: str, case: Case) -> None:
    """On one scheme of each combination of hooks, or on every fourth of these."""
    checks.assert_passes(check, case)
