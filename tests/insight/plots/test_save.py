"""Figures and files: an animation has all frames, and files are reproducible."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.insight.plots import Shapes
from hf_posenc.insight.plots.compose import request_of, sheets
from hf_posenc.insight.plots.kinds import plot_of
from hf_posenc.insight.plots.save import ComputedPlot, frames, save

pytest.importorskip("matplotlib", reason="an extra")
SMALL = Shapes(heads=2, head_dim=8, width=16)


def computed(schemes: str, name: str, *, count: int = 1, same_scale: bool = False, **how: Any) -> ComputedPlot:
    order, one = request_of(schemes, shapes=SMALL, **how), plot_of(name)
    return ComputedPlot(one, frames(one, order, count=count) if count > 1 else [sheets(one, order)], same_scale)


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_files_are_the_same_every_time(tmp_path: Path, ending: str) -> None:
    one, two = (tmp_path / f"{n}{ending}" for n in "ab")
    for path in (one, two):
        assert save([computed("binary", "code", length=8)], path) == [path]
    assert one.read_bytes() == two.read_bytes()
    starts = {".png": b"\x89PNG", ".svg": b"<?xml"}
    assert one.read_bytes().startswith(starts[ending])


def test_an_animation_has_all_frames(tmp_path: Path) -> None:
    from PIL import Image

    (path,) = save([computed("rope", "clock", count=4, position=12)], tmp_path / "clock.gif")
    film = Image.open(io.BytesIO(path.read_bytes()))
    assert film.n_frames == 4
    assert film.info["loop"] == 0
