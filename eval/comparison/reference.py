"""The reference of a comparison: the scheme that the others are compared with, document by document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hf_posenc.errors import BadComparison, nearest, shown
from hf_posenc.eval.comparison.combine import short_names
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.record import Record
from hf_posenc.schemes.entry import UNPATCHED


def compared_with(comparison: Comparison, given: str | None) -> Comparison:
    """The same comparison with a reference, or with none.

    Raises:
        BadComparison: no line is called so, or it is the only one.
    """
    label = None if given is None else reference_of(comparison.about["schemes"], given)
    return replace(comparison, about=comparison.about | {"against": label})


def check_names_model(given: str, names: Sequence[str], entry: str) -> None:
    """Refuse a reference among lines of several models that does not name its model, before anything is measured.

    Args:
        given: the reference.
        names: of the models.
        entry: label of a scheme, for the message.

    Raises:
        BadComparison: it names none of the models.
    """
    short = short_names(names).values()
    if not any(given.startswith(f"{name} · ") for name in short):
        raise BadComparison(
            f"against is {shown(given)}, and lines of several models begin with {', '.join(short)}. "
            f"Name the model, too, as in {f'{next(iter(short))} · {entry}'!r}."
        )


def check_same_documents(comparison: Comparison) -> None:
    """Refuse lines of several runs whose documents are not those of the reference; none without a reference.

    Raises:
        BadComparison: a line has a cell with other documents, or one of the two has no scores of documents.
    """
    reference = comparison.about["against"]
    done = comparison.with_state("done")
    base = {(record.task, record.length): record for record in done if record.scheme == reference}
    for record in done:
        other = base.get((record.task, record.length), record)
        ours, theirs = documents_of(record), documents_of(other)
        if ours != theirs:
            at = "" if record.length is None else f" at {record.length:,} tokens"
            raise BadComparison(
                f"{shown(record.scheme)} and {shown(reference)} do not have the same documents of {record.task}{at}: "
                f"{len(ours)} and {len(theirs)}, and {len(ours & theirs)} of them in both. Leave against (--against) "
                "out, or measure both runs again with one version of hf-posenc."
            )


def documents_of(record: Record) -> set[tuple[str, str, int | None]]:
    """Name, cluster and length of the documents of a cell; none in cells of earlier formats."""
    return {(score["document"], score["cluster"], score["length"]) for score in record.documents}


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
