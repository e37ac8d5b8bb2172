"""``hf-posenc show --interactive``: one HTML page with sliders instead of plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_posenc.cli import output
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.output_paths import check_output_file

if TYPE_CHECKING:
    from hf_posenc.insight.plots.models import Shapes
    from hf_posenc.schemes.entry import Entry

PAGE = Path("pictures/interactive.html")


def write_interactive(
    entries: Sequence[Entry],
    out: Path | None,
    others: Mapping[str, Any],
    *,
    shapes: Shapes,
    lengths: Mapping[str, Any],
    as_json: bool,
    command: str,
) -> None:
    """Write the page, and show where.

    Raises:
        BadArgument: an option of ``others``, which choose plots or a model, is given as well.
    """
    from hf_posenc.insight.interactive import write_page

    for name, value in others.items():
        if value:
            raise BadArgument(f"--interactive writes a page of all plots for shapes without weights; leave out {name}.")
    path = out or PAGE
    check_output_file("--out", path)
    written = write_page(entries, path, shapes=shapes, command=command, **lengths)
    if as_json:
        output.show_json({"files": [str(written)]})
    else:
        output.show_text(f"Written to {written}")
