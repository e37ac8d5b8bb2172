"""What a reader must know of an evaluation besides its numbers: fewer prompts or documents than it seems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hf_posenc.eval.results.paired import FEWEST
from hf_posenc.eval.results.rows import Row
from hf_posenc.eval.tasks.sweep import REPEATED


def remarks_on(results: Mapping[str, Any], rows: Iterable[Row]) -> list[str]:
    """Remarks on lm-eval's results and the rows made of them."""
    return [*repeated(results), *dict.fromkeys(few_documents(rows))]


def repeated(results: Mapping[str, Any]) -> Iterator[str]:
    """Say which results come from fewer prompts than were asked."""
    for task, config in results.get("configs", {}).items():
        for length, (asked, different) in ((config.get("metadata") or {}).get(REPEATED) or {}).items():
            yield (
                f"{task} at {int(length):,} tokens: {asked} prompts, {different} distinct, because depths "
                "coincide where there is little filler. Intervals count keys, not prompts."
            )


def few_documents(rows: Iterable[Row]) -> Iterator[str]:
    """Say which results have no interval because all windows are of very few documents."""
    for row in rows:
        if row.clusters is not None and row.clusters < min(FEWEST, row.n):
            yield (
                f"{row.task}: the {row.n} windows are of {row.clusters} documents, whose windows are not independent "
                f"of each other, and too few for an interval. Give {FEWEST} documents or more, or a single one."
            )
