"""Figures and files: every plot is drawn and labelled, and files are reproducible."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots import Shapes, show
from hf_posenc.insight.plots.animate import frames
from hf_posenc.insight.plots.catalogue import plot_of
from hf_posenc.insight.plots.compose import sheets
from hf_posenc.insight.plots.plot import request_of
from hf_posenc.insight.plots.save import (
    ComputedPlot,
    check_ending,
    save,
    to_dict,
)

pytest.importorskip("matplotlib", reason="an extra")
SMALL = Shapes(heads=2, head_dim=8, width=16)


def computed(schemes: str, name: str, *, count: int = 1, same_scale: bool = False, **how: Any) -> ComputedPlot:
    order, one = request_of(schemes, shapes=SMALL, **how), plot_of(name)
    return ComputedPlot(one, frames(one, order, count=count) if count > 1 else [sheets(one, order)], same_scale)


PLOTS = {
    "code": "binary,sinusoidal", "dimensions": "sinusoidal", "product": "sinusoidal,rope", "steps": "integer,binary",
    "path": "binary,sinusoidal", "places": "randpos", "distance": "self_extend,dca", "visible": "window,sinks",
    "bias": "alibi,t5", "distance_curve": "rope,string", "bias_curve": "alibi,fire", "score": "rope,sinusoidal",
    "score_curve": "rope,xpos", "temperature": "logn,yarn", "values": "shaw:values=true", "grid": "rope,rope_nd",
    "frequencies": "yarn,longrope", "stretch": "pi,yarn", "clock": "rope,sinusoidal", "rotation": "rope",
}  # fmt: skip


@pytest.mark.parametrize(("name", "schemes"), PLOTS.items(), ids=PLOTS)
def test_every_plot_is_drawn_with_labelled_axes(name: str, schemes: str) -> None:
    figure = show(schemes, name, shapes=SMALL, trained_length=16)[name]
    figure.canvas.draw()
    drawn = [axes for axes in figure.axes if axes.axison]
    assert figure.get_suptitle().startswith(plot_of(name).title)
    if name != "clock":  # dials have words of their own
        assert all(axes.get_xlabel() or axes.get_ylabel() or axes.get_title("left") for axes in drawn)
        words = " ".join(axes.get_xlabel() + axes.get_ylabel() for axes in drawn)
        assert words.strip()
    assert figure.get_figwidth() <= 10.5


def test_each_panel_has_its_own_scale_unless_one_is_asked_for() -> None:
    def scales(**how: bool) -> tuple[list[tuple[float, float]], str]:
        figure = computed("integer,binary", "code", length=12, **how).drawn()
        clims = [image.get_clim() for axes in figure.axes[:2] for image in axes.images]
        return clims, figure.get_suptitle().splitlines()[-1]

    assert scales() == ([(-11, 11), (-1, 1)], "each panel has its own scale")
    assert scales(same_scale=True) == ([(-11, 11), (-11, 11)], "all panels have one scale")


def test_curves_share_axes_unless_one_would_look_flat() -> None:
    assert len(computed("rope,xpos", "score_curve", length=12).drawn().axes) == 1
    assert len(computed("rope,none", "score_curve", length=12).drawn().axes) == 1  # a constant is flat anyway
    assert len(computed("rope,alibi", "score_curve", length=400).drawn().axes) == 2
    assert len(computed("rope,alibi", "score_curve", length=400, same_scale=True).drawn().axes) == 1


def test_frames_share_one_scale() -> None:
    film = computed("pi", "stretch", count=3, factor=8)
    assert {film.drawn(n).axes[0].get_ylim() for n in range(3)} == {(0, 1.06 * 8)}


@pytest.mark.parametrize("ending", [".png", ".svg", ".html"])
def test_files_are_the_same_every_time(tmp_path: Path, ending: str) -> None:
    one, two = (tmp_path / f"{n}{ending}" for n in "ab")
    for path in (one, two):
        assert save([computed("binary", "code", length=8)], path, title="t") == [path]
    assert one.read_bytes() == two.read_bytes()
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".html": b"<!DOCTYPE html>"}
    assert one.read_bytes().startswith(starts[ending])


def test_several_plots_are_several_files_or_one_page(tmp_path: Path) -> None:
    two = [computed("rope", "clock"), computed("rope", "product")]
    files = save(two, tmp_path / "rope.svg", title="rope")
    assert [file.name for file in files] == ["rope-clock.svg", "rope-product.svg"]
    assert "tokens/rotation" in files[0].read_text(encoding="utf-8")  # letters are letters
    assert save(two, tmp_path / "rope.html", title="rope") == [tmp_path / "rope.html"]


class Page(HTMLParser):
    """What a page holds, and whether its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_self_contained(tmp_path: Path) -> None:
    film = computed("yarn", "stretch", count=3)
    (path,) = save([computed("yarn", "frequencies"), film], tmp_path / "p.html", title="<yarn>", command="a & b")
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    assert page.open == []
    tags = [tag for tag, _ in page.seen]
    assert tags.count("figure") == 2
    assert {"svg", "script", "h1"} <= set(tags)
    linked = [value for _, a in page.seen for name, value in a.items() if name in ("src", "href", "xlink:href")]
    assert all(str(value).startswith(("data:", "#")) for value in linked)
    names = [a["id"] for _, a in page.seen if "id" in a]
    assert len(names) == len(set(names))
    assert "&lt;yarn&gt;" in path.read_text(encoding="utf-8")
    (still,) = save([computed("yarn", "frequencies")], tmp_path / "s.html", title="t")
    assert "script" not in still.read_text(encoding="utf-8")


def test_an_animation_has_all_frames(tmp_path: Path) -> None:
    from PIL import Image

    (path,) = save([computed("rope", "clock", count=4, position=12)], tmp_path / "clock.gif", title="t")
    film = Image.open(io.BytesIO(path.read_bytes()))
    assert film.n_frames == 4
    assert film.info["loop"] == 0


@pytest.mark.parametrize(("name", "moves"), [("a.pdf", False), ("a", False), ("a.png", True), ("a.svg", True)])
def test_invalid_file_names_are_refused(name: str, moves: bool) -> None:
    with pytest.raises(OptionOutOfRange, match=r"\.gif"):
        check_ending(Path(name), animated=moves)


def test_numbers_are_json() -> None:
    found = json.loads(json.dumps(to_dict(computed("window:size=2", "distance", length=3)), allow_nan=False))
    assert found["picture"] == "distance"
    assert found["schemes"][0]["numbers"]["distance"] == [[0, None, None], [1, 0, None], [None, 1, 0]]
