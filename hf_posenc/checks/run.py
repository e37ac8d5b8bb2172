"""Run all checks on a user's own model: `check_scheme`, after scikit-learn's ``check_estimator``."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from traceback import format_exc
from typing import TYPE_CHECKING, Any

from hf_posenc.checkpoints.merge import load_unpatched
from hf_posenc.checks.case import Case
from hf_posenc.checks.registry import Check, applicable_checks, check_named
from hf_posenc.checks.tiny_models import TINY_MODELS
from hf_posenc.checks.tolerances import Deviation
from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import OptionOutOfRange, PosEncError, PositionOutOfTable, SchemeNotDefined
from hf_posenc.patching.state import describe
from hf_posenc.schemes.registry import list_schemes
from hf_posenc.schemes.spec import SchemeSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


MAX_PARAMETERS_TO_COPY = 50_000_000


@explained_imports()
def check_scheme(
    model: PreTrainedModel | str | os.PathLike[str],
    scheme: SchemeSpec,
    *,
    checks: Iterable[str] | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> list[Deviation]:
    """Measure every check that applies to a scheme on a model, and restore the model.

    The patch is first applied exactly as requested, so `hf_posenc.patch_model` can refuse it. Most checks then run on a
    few dozen tokens: they build the scheme for a short trained length (an attribute of `Check`) and the same factor, so
    its boundaries lie within these tokens. If the scheme's options do not allow that, the requested lengths stay.

    Args:
        model: a supported model on any device, or anything that `hf_posenc.from_pretrained` loads.
        scheme: as `hf_posenc.patch_model` takes it.
        checks: names from `hf_posenc.checks.CHECKS`. Default: all; without those that need a copy of the model if it
            has more than `MAX_PARAMETERS_TO_COPY` parameters.
        progress: called with the name of each check before it runs.
        options: as `hf_posenc.patch_model` takes them.

    Returns:
        One `Deviation` per check. Its ``failed`` is true if the value exceeds the tolerance, or if the check raised.

    Raises:
        PosEncError: `hf_posenc.patch_model` refuses the patch.
        UnknownCheck: no check has one of the names.
    """
    names = None if checks is None else [check_named(name).name for name in checks]
    if isinstance(model, (str, os.PathLike)):
        model = load_unpatched(model)
    asked = Case(model, scheme, **options)
    cases: dict[int | None, Case] = {None: asked}
    copies = names is not None or sum(weight.numel() for weight in model.parameters()) <= MAX_PARAMETERS_TO_COPY
    deviations = []
    for check in applicable_checks(asked, copies=copies, names=names):
        if progress is not None:
            progress(check.name)
        length = check.trained_length
        if length is not None and length not in cases:
            cases[length] = _with_short_trained_length(asked, length)
        case = cases[length]
        deviations.append(_measure(check, case.with_copied_model() if check.needs_copy else case))
    return deviations


check = check_scheme  # the name of the command


def _measure(check: Check, case: Case) -> Deviation:
    """Run a check; an exception counts as an infinite deviation, because the patch itself was accepted."""
    try:
        return check(case)
    except Exception as error:
        deviation = case.deviation(check.name, math.inf, f"{type(error).__name__}: {error}".partition("\n")[0])
        return replace(deviation, traceback=format_exc())


def _with_short_trained_length(asked: Case, length: int) -> Case:
    """The case with a trained length of at most ``length`` and the same factor, or unchanged if that is refused."""
    with asked.patched() as model:
        factor = describe(model).factor
    options = {name: value for name, value in asked.options.items() if name != "target_length"}
    options |= {"factor": factor, "trained_length": min(length, asked.trained_length)}
    short = Case(asked.model, asked.scheme, asked=asked.options, **options)
    try:
        with short.patched():
            return short
    except PosEncError:
        return asked


def longest_case(model: str | PreTrainedModel, scheme: SchemeSpec, **options: Any) -> Case:
    """Case at four times the trained length, or at the trained length if the scheme cannot be extended.

    Raises:
        PosEncError: the scheme cannot be applied to this model at either length.
    """
    try:
        return Case(model, scheme, factor=4, **options).try_patch()
    except (OptionOutOfRange, PositionOutOfTable):
        return Case(model, scheme, factor=1, **options).try_patch()


def cases(*schemes: SchemeSpec) -> list[Case]:
    """Cases of these schemes (default: all registered) on every tiny model for which they are defined."""
    defined = []
    for scheme in schemes or [record.name for record in list_schemes()]:
        for model in TINY_MODELS:
            with suppress(SchemeNotDefined):
                defined.append(longest_case(model, scheme))
    return defined
