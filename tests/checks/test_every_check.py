"""Every registered scheme passes every check on every tiny model for which it is defined, and is refused elsewhere."""

from __future__ import annotations

import pytest

from hf_posenc import checks, list_schemes
from hf_posenc.checks import CHECKS, Case
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.life_cycle import differences, snapshot
from hf_posenc.checks.tiny_models import TINY_MODELS, TRAINED_LENGTH, tiny_model
from hf_posenc.errors import SchemeNotDefined

from .case_lists import ALL_CASES, CASES, ONE_PER_HOOKS, QUICK

# `formula` has a test of its own below, `torch_compile` a file.
SLOW = [name for name, check in CHECKS.items() if check.slow and name not in ("formula", "torch_compile")]
SLOWEST = (  # many forward passes, or a compiler
    *("continuous_batching", "torch_export", "memory_leaks", "recompilation", "options", "finite_differences"),
)
CHOSEN = [(check, case) for check in SLOW for case in (QUICK[::6] if check in SLOWEST else QUICK)]
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
    """On one scheme of each combination of hooks, or on every sixth of these."""
    checks.assert_passes(check, case)


DEFINED = {(case.model_name, case.scheme_name) for case in CASES}
UNDEFINED = sorted({(model, record.name) for model in TINY_MODELS for record in list_schemes()} - DEFINED)


@pytest.mark.parametrize(("model", "scheme"), UNDEFINED, ids="-".join)
def test_undefined_case_is_refused(model: str, scheme: str) -> None:
    patched = tiny_model(model)
    before = snapshot(patched, random_tokens(patched, TRAINED_LENGTH))
    with pytest.raises(SchemeNotDefined):
        Case(patched, scheme, factor=1).apply(patched)
    assert differences(before, snapshot(patched, random_tokens(patched, TRAINED_LENGTH))) == (0.0, "nothing")
