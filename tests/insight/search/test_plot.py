"""Picture of a search: its scale fits the differences, and its legend covers no curve."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="an extra")

from hf_posenc.core.plotting.figures import figure
from hf_posenc.eval.results.paired import Difference
from hf_posenc.insight.search.halving import Halving
from hf_posenc.insight.search.plot import differences, rungs
from hf_posenc.insight.search.result import SearchResult
from hf_posenc.insight.search.trial import HeldOut, Trial
from hf_posenc.schemes.entry import Entry

CHOICE = Entry("rerope", "rerope")
SMALL, LARGE = (-0.0011, -0.0004, 0.0002), (-6.0, 0.2, 3.0)
ONE_FAILS = (-6.1, -0.004, 0.001, 0.02)


def result(found: tuple[float, ...] = ()) -> SearchResult:
    """A search with these held-out differences, whose intervals are a tenth of them to each side."""
    lines = (
        HeldOut(str(d), 2.0, 0.1, 9, Difference("rerope", str(d), "posenc_ppl", "nll", None, d, 0.05 * abs(d),
                d - 0.1 * abs(d), d + 0.1 * abs(d), 9, 9, 0.001, 0.002, "undecided"))
        for d in found
    )  # fmt: skip
    arms = (Trial(f"rerope:window={n}", "rerope", {"window": n}, False, False, "measured", loss=2.0) for n in range(6))
    return SearchResult({"plan": {"rungs": [2, 2]}}, tuple(arms), CHOICE, "rerope", tuple(lines))


def drawn(found: tuple[float, ...]) -> tuple[Any, Any]:
    """The canvas and axes of the differences."""
    canvas, axes = figure(6.0, 5.0)
    differences(axes, result(found))
    canvas.draw_without_rendering()
    return canvas, axes


@pytest.mark.parametrize("found", [SMALL, LARGE, ONE_FAILS, (0.0,), ()], ids=str)
def test_ticks_are_few_plain_numbers_that_do_not_touch(found: tuple[float, ...]) -> None:
    _, axes = drawn(found)
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert 2 <= len(ticks) <= 7
    for tick in ticks:
        assert float(tick.label1.get_text().replace("−", "-")) == pytest.approx(tick.get_loc())
        assert len(tick.label1.get_text()) <= 8
    boxes = [tick.label1.get_window_extent() for tick in ticks]
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


@pytest.mark.parametrize("found", [SMALL, ONE_FAILS], ids=str)
def test_small_differences_are_told_apart(found: tuple[float, ...]) -> None:
    """Two hundredths of the axis between them, also beside one that is a thousand times larger."""
    _, axes = drawn(found)
    small = sorted(found)[-2:]
    ends = axes.transAxes.inverted().transform(axes.transData.transform([(value, 0) for value in small]))[:, 0]
    assert ends[1] - ends[0] > 0.02


def test_the_legend_covers_no_curve() -> None:
    canvas, axes = figure(6.0, 5.0)
    losses = {f"rerope:window={n}": {str(k): 2.0 + n / 10 for k in range(4)} for n in range(6)}
    rungs(axes, result(), Halving(losses=losses))
    canvas.draw_without_rendering()
    assert len(axes.get_legend().get_texts()) == 6
    assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())
    assert canvas.bbox.containsx(axes.get_legend().get_window_extent().x0)
