"""Every registered scheme, on every model where it is defined, obeys every check in the check's own case."""

from __future__ import annotations

import pytest

from hf_posenc import checks
from hf_posenc.checks import CHECKS, Case

from .matrix import BY_HOOK, EVERY

COSTLY = [name for name, check in CHECKS.items() if check.costly and name != "compiled"]  # which has a file of its own
THIN = ("continuous", "exported", "leaks", "lengths", "options", "secant")  # many readings, or a compiler, each
CHOSEN = [(check, pair) for check in COSTLY for pair in (BY_HOOK[::4] if check in THIN else BY_HOOK)]
REST = [(check, pair) for check in COSTLY for pair in EVERY if (check, pair) not in CHOSEN]


@pytest.mark.parametrize("pair", EVERY, ids=str)
@pytest.mark.parametrize("check", [name for name, check in CHECKS.items() if not check.costly])
def test_check(check: str, pair: Case) -> None:
    checks.assert_passes(check, pair)


@pytest.mark.parametrize(("check", "pair"), CHOSEN, ids=str)
def test_costly_law(check: str, pair: Case) -> None:
    """On one scheme of every combination of hooks, or on every fourth of these."""
    checks.assert_passes(check, pair)


@pytest.mark.full
@pytest.mark.parametrize(("check", "pair"), REST, ids=str)
def test_costly_law_of_all(check: str, pair: Case) -> None:
    checks.assert_passes(check, pair)
