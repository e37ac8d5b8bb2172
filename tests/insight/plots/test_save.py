"""Files are reproducible."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_posenc.insight.plots import Shapes
from hf_posenc.insight.plots.compose import request_of, save, sheets
from hf_posenc.insight.plots.kinds import plot_of

pytest.importorskip("matplotlib", reason="an extra")
SMALL = Shapes(heads=2, head_dim=8, width=16)


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_files_are_the_same_every_time(tmp_path: Path, ending: str) -> None:
    one, two = (tmp_path / f"{n}{ending}" for n in "ab")
    for path in (one, two):
        computed = plot_of("code"), sheets(plot_of("code"), request_of("binary", shapes=SMALL, length=8))
        assert save([computed], path) == [path]
    assert one.read_bytes() == two.read_bytes()
    starts = {".png": b"\x89PNG", ".svg": b"<?xml"}
    assert one.read_bytes().startswith(starts[ending])
