"""Structure of every picture: panels that are not blank, words inside the figure, legends that name what is drawn.

Pixels are compared with nothing: another version of matplotlib or another font may change them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hf_posenc.core.plotting import WIDEST
from hf_posenc.insight.plots import Shapes, show
from hf_posenc.insight.plots.kinds import list_plots, plot_of

matplotlib = pytest.importorskip("matplotlib", reason="an extra")
SMALL = Shapes(heads=8, head_dim=16, width=32)

# Of each plot: schemes alone and side by side, some of very different magnitude, and how many panels these have.
CASES: dict[str, dict[str, int]] = {
    "code": {"integer,norm01,binary,sinusoidal": 4, "sinusoidal": 1},
    "places": {"randpos": 1},
    "distance": {"self_extend:group=4;window=16,dca": 2},
    "visible": {"window,sinks,lm_infinite": 3, "self_extend:group=4;window=16,dca": 2},
    "bias": {"alibi": 4, "fox": 1},
    "bias_curve": {"alibi,t5,kerple": 3},
    "score": {"rope,alibi,t5": 3, "rope,none": 2},
    "score_curve": {"rope,alibi,t5": 3, "rope,xpos": 1},
    "distance_curve": {"rerope,leaky_rerope,self_extend,dca": 1},
    "temperature": {"logn,yarn": 1},
    "frequencies": {"pi,ntk,yarn,llama3": 4},
    "clock": {"rope,sinusoidal": 16},
}
PICTURES = [(name, schemes, panels) for name, found in CASES.items() for schemes, panels in found.items()]
BLANK = 1.0  # variance of the grey levels, 0 … 255, of a panel with nothing in it
MARGIN = 2  # pixels
COLOUR_BAR = "<colorbar>"  # label that matplotlib gives its axes


def drawn(schemes: str, name: str, **how: Any) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = show(schemes, name, **{"shapes": SMALL, **how})[name]
    FigureCanvasAgg(figure).draw()
    return figure


def panels(figure: Any) -> list[Any]:
    """Axes other than colour bars; a dial of a clock has its frame switched off."""
    bars = {id(image.colorbar.ax) for axes in figure.axes for image in axes.images if image.colorbar}
    return [axes for axes in figure.axes if id(axes) not in bars and axes.has_data() and axes.get_label() != COLOUR_BAR]


def variance(figure: Any, axes: Any) -> float:
    """Of the grey levels inside a panel."""
    grey = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(float).mean(-1)
    box = axes.get_window_extent()
    height = grey.shape[0]
    inside = grey[height - int(box.y1) + 2 : height - int(box.y0) - 2, int(box.x0) + 2 : int(box.x1) - 2]
    return float(inside.var())


def words_of(figure: Any) -> list[Any]:
    """Texts of a figure, without the numbers along axes, of which matplotlib keeps some that it does not draw."""
    found = [figure._suptitle, *(text for one in figure.legends for text in one.get_texts())]
    for axes in figure.axes:
        labels = (axes.xaxis.label, axes.yaxis.label) if axes.axison else ()
        found += [axes.title, axes._left_title, *labels, *axes.texts]
    return [text for text in found if text is not None]


def cut(figure: Any) -> list[str]:
    """Texts that reach beyond the figure, or over the next panel's title."""
    width, height = figure.canvas.get_width_height()
    outside = []
    for text in words_of(figure):
        if text.get_text().strip():
            box = text.get_window_extent()
            if box.x0 < -MARGIN or box.y0 < -MARGIN or box.x1 > width + MARGIN or box.y1 > height + MARGIN:
                outside.append(text.get_text())
    titles = [axes.title for axes in figure.axes] + [axes._left_title for axes in figure.axes]
    boxes = [title.get_window_extent() for title in titles if title.get_text()]
    outside += ["overlapping titles" for n, a in enumerate(boxes) for b in boxes[:n] if a.overlaps(b)]
    frames = [axes.get_window_extent() for axes in figure.axes if axes.axison]
    return outside + ["a title over another panel" for box in boxes for frame in frames if box.overlaps(frame)]


def test_every_registered_plot_has_a_case() -> None:
    own = {plot.name for plot in list_plots() if type(plot).__module__.startswith("hf_posenc.")}
    assert own == set(CASES)


@pytest.mark.parametrize(("name", "schemes", "count"), PICTURES, ids=[f"{n}-{s}" for n, s, _ in PICTURES])
def test_a_picture_is_whole(name: str, schemes: str, count: int) -> None:
    figure = drawn(schemes, name, trained_length=32 if plot_of(name).trained_length <= 256 else None)
    found = panels(figure)
    assert len(found) == count
    assert not cut(figure)
    assert figure.get_figwidth() <= WIDEST
    assert [variance(figure, axes) > BLANK for axes in found] == [True] * count
    legends = [text.get_text() for one in figure.legends for text in one.get_texts()]
    assert len(legends) == len(set(legends))
    words = figure.get_suptitle() + " ".join(
        [*legends, *(a.get_title("left") for a in figure.axes), *(t.get_text() for a in figure.axes for t in a.texts)]
    )
    missing = [one for one in schemes.split(",") if one.partition(":")[0] not in words.replace("\n", "")]
    assert not missing
    if "," in schemes and any(axes.images for axes in found) and name != "visible":
        assert "scale" in figure.get_suptitle()


def test_one_scale_for_unlike_schemes_leaves_blank_panels() -> None:
    """Negative control: what the rule of scales prevents is found by this file's measure of blankness."""
    figure = drawn("integer,sinusoidal", "code")
    for axes in panels(figure):
        axes.images[0].set_clim(-100, 100)  # of the integers, 0 … 99
    figure.canvas.draw()
    assert [variance(figure, axes) > BLANK for axes in panels(figure)] == [True, False]


def test_a_colour_bar_shows_what_occurs() -> None:
    bias, positions = (drawn(scheme, name).axes[-1] for scheme, name in (("alibi", "bias"), ("integer", "code")))
    assert bias.get_ylim()[1] == 0 > bias.get_ylim()[0]
    assert positions.get_ylim()[0] == 0 < positions.get_ylim()[1]
