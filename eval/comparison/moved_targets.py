"""Finished cells that are measured again because their targets moved: a longer length needs more text before them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hf_posenc.eval.comparison.cell import Cell
from hf_posenc.eval.results.record import canonical
from hf_posenc.eval.results.store import Store

FOLLOWING = ("longest", "patched_for", "terms")
log = logging.getLogger(__name__)


def warn_of_moved_targets(store: Store, cells: Sequence[Cell], longest: int) -> None:
    """Say how many finished cells differ from the wanted ones only in the text before their targets."""
    wanted = {without_longest(cell.settings) for cell in cells}
    others = [s for s in store.settings() if s.get("longest") != longest and without_longest(s) in wanted]
    if others:
        before = ", ".join(f"{one:,}" for one in sorted({s["longest"] for s in others}))
        log.warning(
            "%d finished cell%s of this folder had %s tokens of text before every target, and this run has %s. Other "
            "targets are scored, and schemes without a factor get another one, so that everything is measured again. "
            "Set --longest (longest=) at the first run, to add lengths up to it later without measuring again.",
            len(others), "s" * (len(others) > 1), before, f"{longest:,}",
        )  # fmt: skip


def without_longest(settings: dict[str, object]) -> str:
    """Settings of a cell less what depends on the text before its targets: the factor does, unless it was given."""
    return canonical({name: value for name, value in settings.items() if name not in FOLLOWING})
