"""Checks of patched models as library functions: each is ``check(case) -> Deviation``.

The test suite asserts all of them for every registered scheme on every tiny model, `check_scheme` and
``hf-posenc check`` run them on a user's own model, and the tests of a third-party scheme need four lines::

    @pytest.mark.parametrize("case", checks.cases("my_scheme"), ids=str)
    @pytest.mark.parametrize("check", checks.CHECKS)
    def test_scheme(check, case):
        checks.assert_passes(check, case)
"""

from __future__ import annotations

from hf_posenc.checks import (  # noqa: F401  each registers its checks
    batching,
    cache,
    checkpoint,
    definition,
    effect,
    far_positions,
    generation,
    graph_export,
    later_changes,
    life_cycle,
    memory_growth,
    options,
    precision,
    shift,
    training,
)
from hf_posenc.checks.case import Case
from hf_posenc.checks.registry import CHECKS, Check, applicable_checks, assert_passes
from hf_posenc.checks.run import cases, check_scheme, longest_case
from hf_posenc.checks.tolerances import KNOWN_DEVIATIONS, TOLERANCES, Deviation, KnownDeviation

__all__ = [
    "CHECKS",
    "KNOWN_DEVIATIONS",
    "TOLERANCES",
    "Case",
    "Check",
    "Deviation",
    "KnownDeviation",
    "applicable_checks",
    "assert_passes",
    "cases",
    "check_scheme",
    "longest_case",
]
