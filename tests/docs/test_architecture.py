"""The committed pictures of the architecture match the present imports."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path[:0] = [str(DOCS)]

import draw_architecture as drawing  # noqa: E402
import import_graph as graph  # noqa: E402

IMPORT = re.compile(r'data-import="(\S+) (\S+)"')


@pytest.mark.slow
@pytest.mark.parametrize("file", drawing.PICTURES)
def test_committed_pictures_are_current(file: str) -> None:
    committed = (drawing.FOLDER / file).read_text(encoding="utf-8")
    now = drawing.PICTURES[file]()
    gone, new = (
        sorted(set(IMPORT.findall(a)) - set(IMPORT.findall(b))) for a, b in ((committed, now), (now, committed))
    )
    message = f"Run: python docs/draw_architecture.py. Imports that ended: {gone}; new ones: {new}"
    assert committed == now, message


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports for type checkers and inside functions count."""
    arrows = graph.file_arrows()
    assert graph.levels(arrows)
    one, other = min(arrows)
    with pytest.raises(ValueError, match="circle"):  # control
        graph.levels(arrows | {(other, one)})
