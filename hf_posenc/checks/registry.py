"""Registry of the checks: each check by name, with the properties a case must have for it to apply."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Concatenate, ParamSpec
from unittest import SkipTest

from hf_posenc.checks.case import Case
from hf_posenc.checks.tolerances import Deviation
from hf_posenc.errors import UnknownCheck, nearest, shown

P = ParamSpec("P")
SHORT_TRAINED_LENGTH = 16  # brings every boundary of a scheme within a few dozen tokens

Measured = tuple[float, str]  # the value of a check, and a description of its location
CheckFunction = Callable[Concatenate[Case, P], Measured]


@dataclass(frozen=True)
class Check:
    """A named function that measures one property of a patched model.

    Attributes:
        name: name for ``hf-posenc check --checks NAME`` and for the tables in `hf_posenc.checks.tolerances`.
        function: measures a case; the defaults of its other parameters are what `check_scheme` measures.
        needs: attributes of `Case` that must be true.
        needs_copy: changes the model beyond repair, so `check_scheme` runs it on a deep copy.
        slow: the default test run measures it on one scheme for each set of hooks only; the full run on all.
        package: name of an optional package without which the check cannot run.
        trained_length: upper limit of the trained length in `check_scheme`; None to keep the lengths of the patch.
    """

    name: str
    function: Callable[..., Measured]
    needs: tuple[str, ...] = ()
    needs_copy: bool = False
    slow: bool = False
    package: str | None = None
    trained_length: int | None = SHORT_TRAINED_LENGTH

    def applies_to(self, case: Case) -> bool:
        """Whether the check is defined for this case and its optional package is installed."""
        installed = self.package is None or find_spec(self.package) is not None
        return installed and all(getattr(case, name) for name in self.needs)

    def __call__(self, case: Case, **parameters: Any) -> Deviation:
        """Measure a case, with the function's default parameters unless others are given."""
        return case.deviation(self.name, *self.function(case, **parameters))

    def __str__(self) -> str:
        return self.name


CHECKS: dict[str, Check] = {}


def register_check(name: str, **properties: Any) -> Callable[[CheckFunction[P]], CheckFunction[P]]:
    """Add the decorated function to `CHECKS`; ``properties`` are attributes of `Check`."""

    def decorate(function: CheckFunction[P]) -> CheckFunction[P]:
        CHECKS[name] = Check(name, function, **properties)
        return function

    return decorate


def located(measured: Measured, place: str) -> Measured:
    """A measured value with a place added to its location."""
    value, location = measured
    return value, f"{location}, {place}"


def worst(deviations: Iterable[Measured]) -> Measured:
    """The largest of several measured values, with its location; NaN counts as the largest."""
    return max(deviations, key=lambda measured: (math.isnan(measured[0]), measured[0]))


def applicable_checks(case: Case, *, copies: bool = True, names: Iterable[str] | None = None) -> list[Check]:
    """List the checks that apply to a case, in order of registration.

    Args:
        case: scheme and model.
        copies: include checks that need a copy of the model.
        names: only these checks; all by default.

    Raises:
        UnknownCheck: no check has one of the names.
    """
    chosen = [check_named(name) for name in (CHECKS if names is None else names)]
    return [check for check in chosen if check.applies_to(case) and (copies or not check.needs_copy)]


def check_named(name: str) -> Check:
    """The check called ``name``; raises `UnknownCheck` if there is none."""
    if name not in CHECKS:
        known = ", ".join(CHECKS)
        raise UnknownCheck(f"There is no check {shown(name)}.{nearest(name, CHECKS)} Choose from {known}.")
    return CHECKS[name]


def assert_passes(name: str, case: Case) -> None:
    """Measure a check and raise if it fails.

    A check that does not apply to the case is no pass: pytest and unittest report it as skipped.

    Raises:
        AssertionError: the check fails; the message has the deviation, its location and the command that repeats it.
        unittest.SkipTest: the check does not apply.
    """
    if not CHECKS[name].applies_to(case):
        raise SkipTest(f"Check {name} does not apply to {case}, or its package is not installed.")
    deviation = CHECKS[name](case)
    if deviation.failed:
        raise AssertionError(str(deviation))
