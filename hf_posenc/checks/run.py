"""The checks on a user's own model, as ``hf-posenc check`` runs them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hf_posenc.checkpoints.load import from_pretrained
from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.registry import Check, applicable_checks
from hf_posenc.errors import PosEncError
from hf_posenc.patching.state import describe
from hf_posenc.schemes.spec import SchemeSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHORT = 16  # taken for the trained length, it brings every boundary of a scheme within a few dozen tokens

SMALL = 50_000_000  # parameters, of which a second copy costs nobody anything

AS_ASKED = ("unpatch", "twice")  # about the very patch the user will make


def check_scheme(
    model: PreTrainedModel | str | os.PathLike[str],
    scheme: SchemeSpec,
    *,
    checks: Iterable[str] | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> list[Deviation]:
    """Measure every check that applies to a scheme on a live model, and give the model back as it was.

    The patch is first made exactly as asked, so that what `hf_posenc.patch_model` refuses is refused. Most checks are
    about boundaries, not about the number where these stand: they read a few dozen tokens, with the scheme built for a
    trained length of 16 and the same factor. Where its options do not allow that, they use the lengths asked for.

    Args:
        model: any supported model, on any device; or what `hf_posenc.from_pretrained` loads.
        scheme: as `hf_posenc.patch_model` takes it.
        checks: names from `CHECKS`; by default all, of a model of more than `SMALL` parameters those that need no copy.
        progress: called with the name of each check before it is measured.
        options: as `hf_posenc.patch_model` takes them.

    Returns:
        One `Deviation` a check; the check is broken where ``gap.failed``, which it also is where an exception came in
        its way.

    Raises:
        PosEncError: the patch is refused.
    """
    if isinstance(model, (str, os.PathLike)):
        model = from_pretrained(model)
    asked = Case(model, scheme, **options)
    short = _short(asked)
    copies = checks is not None or sum(weight.numel() for weight in model.parameters()) <= SMALL
    found = []
    for check in applicable_checks(asked, copies=copies, names=checks):
        if progress is not None:
            progress(check.name)
        pair = asked if check.name in AS_ASKED else short
        found.append(_measured(check, pair.copied() if check.copies else pair))
    return found


def _measured(check: Check, pair: Case) -> Deviation:
    """The gap; infinite where the scheme raised on the way, since it was accepted for all that checks ask of it."""
    try:
        return check(pair)
    except Exception as error:
        return pair.gap(check.name, math.inf, f"{type(error).__name__}: {error}".partition("\n")[0])


def _short(asked: Case) -> Case:
    """The pair with a short trained length and the same factor, or as it was asked for."""
    with asked.patched() as model:
        factor = describe(model).factor
    options = {name: value for name, value in asked.options.items() if name != "target_length"}
    short = Case(
        asked.model, asked.scheme, **{**options, "factor": factor, "trained_length": min(SHORT, asked.trained)}
    )
    try:
        with short.patched():
            return short
    except PosEncError:
        return asked
