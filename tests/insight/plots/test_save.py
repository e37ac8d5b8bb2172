"""Figures and files: panels that show the same are drawn once, and files are reproducible."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_posenc.insight.plots import Shapes
from hf_posenc.insight.plots.compose import request_of, sheets
from hf_posenc.insight.plots.equal_panels import drawn_once
from hf_posenc.insight.plots.kinds import plot_of
from hf_posenc.insight.plots.marks import labelled
from hf_posenc.insight.plots.registry import Scales, Sheet
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


MAP = torch.tensor([[0.0, float("nan")], [1.0, 2.0]])


def labels(*frames: list[Sheet]) -> list[str]:
    sheets, scales = drawn_once(frames[-1], Scales(list(frames)))
    assert [len(frame) for frame in scales.frames] == [len(sheets)] * len(frames)
    return [labelled(sheet) for sheet in sheets]


def test_equal_schemes_are_one_panel_with_both_names() -> None:
    other = Sheet("pi", {"distance": MAP + 1})
    assert labels([Sheet("rope", {"distance": MAP}), other, Sheet("yarn", {"distance": MAP.clone()})]) == [
        "rope, yarn",
        "pi",
    ]


def test_equal_heads_are_a_range() -> None:
    heads = [Sheet("alibi", {"head": n, "bias": MAP}) for n in range(4)]
    assert labels(heads) == ["alibi, heads 0–3"]
    other = Sheet("alibi", {"head": 1, "bias": 2 * MAP})
    assert labels([heads[0], other, heads[2]]) == ["alibi, heads 0, 2", "alibi, head 1"]


def test_panels_that_differ_in_one_frame_stay() -> None:
    early = [Sheet("rope", {"distance": MAP}), Sheet("yarn", {"distance": MAP})]
    late = [Sheet("rope", {"distance": MAP}), Sheet("yarn", {"distance": MAP + 1})]
    assert labels(early, late) == ["rope", "yarn"]
