"""The reference of a comparison: the scheme that the others are compared with, document by document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_posenc.errors import BadComparison, nearest, shown
from hf_posenc.eval.comparison.models import short_names
from hf_posenc.schemes.entry import UNPATCHED, Entry


def check_reference(given: str, names: Sequence[str], entries: Sequence[Entry]) -> None:
    """Refuse a reference that no line will have, before anything is measured.

    Args:
        given: the reference.
        names: of the models; the labels of several are known when all are loaded, their beginnings before.
        entries: the schemes.

    Raises:
        BadComparison: it is no line, or names none of the models.
    """
    if len(names) == 1:
        reference_of([{"label": entry.label, "scheme": entry.scheme} for entry in entries], given)
        return
    short = short_names(names).values()
    if not any(given.startswith(f"{name} · ") for name in short):
        raise BadComparison(
            f"against is {shown(given)}, and lines of several models begin with {', '.join(short)}. "
            f"Name the model, too, as in {f'{next(iter(short))} · {entries[0].label}'!r}."
        )


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
        raise BadComparison(f"Only {labels[0]} is measured, so there is nothing to compare it with. Add a scheme.")
    return str(named[0])
