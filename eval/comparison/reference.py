"""The reference of a comparison: the scheme that the others are compared with, document by document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hf_posenc.errors import BadComparison, nearest, shown
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.schemes.entry import UNPATCHED


def compared_with(comparison: Comparison, given: str | None) -> Comparison:
    """The same comparison with a reference, or with none.

    Raises:
        BadComparison: no line is called so, or it is the only one.
    """
    label = None if given is None else reference_of(comparison.about["schemes"], given)
    return replace(comparison, about=comparison.about | {"against": label})


def reference_of(schemes: Sequence[Mapping[str, Any]], given: str) -> str:
    """The label of the reference: ``given``, or that of the only line with the scheme of this name.

    Args:
        schemes: ``label`` and ``scheme`` of every line.
        given: a label, or the name of a scheme.

    Raises:
        BadComparison: no line is called so, several have this scheme, or there is only one line.
    """
    labels = [scheme["label"] for scheme in schemes]
    named = [given] if given in labels else [s["label"] for s in schemes if (s["scheme"] or UNPATCHED) == given]
    if len(named) != 1:
        raise BadComparison(
            f"against is {shown(given)}, and the schemes are {', '.join(labels)}.{nearest(str(given), labels)} "
            "Choose one of them."
        )
    if len(labels) < 2:
        raise BadComparison(f"Only {labels[0]} is measured, and nothing to compare with it. Add a scheme.")
    return str(named[0])
