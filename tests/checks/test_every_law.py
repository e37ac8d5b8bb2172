"""Every registered scheme, on every model where it is defined, obeys every law in the law's own case."""

from __future__ import annotations

import pytest

from hf_posenc import checks
from hf_posenc.checks import LAWS, Pair

from .matrix import BY_HOOK, EVERY

COSTLY = [name for name, law in LAWS.items() if law.costly and name != "compiled"]  # which has a file of its own
THIN = ("continuous", "exported", "leaks", "lengths", "options", "secant")  # many readings, or a compiler, each
CHOSEN = [(law, pair) for law in COSTLY for pair in (BY_HOOK[::4] if law in THIN else BY_HOOK)]
REST = [(law, pair) for law in COSTLY for pair in EVERY if (law, pair) not in CHOSEN]


@pytest.mark.parametrize("pair", EVERY, ids=str)
@pytest.mark.parametrize("law", [name for name, law in LAWS.items() if not law.costly])
def test_law(law: str, pair: Pair) -> None:
    checks.assert_holds(law, pair)


@pytest.mark.parametrize(("law", "pair"), CHOSEN, ids=str)
def test_costly_law(law: str, pair: Pair) -> None:
    """On one scheme of every combination of hooks, or on every fourth of these."""
    checks.assert_holds(law, pair)


@pytest.mark.full
@pytest.mark.parametrize(("law", "pair"), REST, ids=str)
def test_costly_law_of_all(law: str, pair: Pair) -> None:
    checks.assert_holds(law, pair)
