"""Plot of a learning-rate range test: what each rate changed of the loss, and the rate that is suggested."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hf_posenc.core.plotting.figures import COLOURS, figure, save_figure

if TYPE_CHECKING:
    from hf_posenc.training import RangeTest

FAINT = "#8C8C8C"
MARGIN = 3.0  # of the lowest average; above, the loss has diverged


def range_test_plot(tested: RangeTest, path: Path) -> None:
    """Draw the change of the loss, and its moving average, against the learning rate.

    Args:
        tested: the result of `range_test`.
        path: of the plot; the suffix selects the format.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    canvas, axes = figure(8.0, 4.6)
    axes.plot(tested.rates, tested.differences, ".", color=FAINT, alpha=0.6, markersize=4, label="rows of one step")
    axes.plot(tested.rates, tested.smoothed, color=COLOURS[5], linewidth=1.8, label="moving average")
    axes.axhline(0.0, color="#555555", linestyle=(0, (4, 3)), linewidth=1.0, zorder=1)
    if tested.suggested is not None:
        label = f"suggested: {tested.suggested:.1e}"
        axes.axvline(tested.suggested, color=COLOURS[4], linewidth=1.4, label=label)
    scale = MARGIN * max(0.01, -min(0.0, *tested.smoothed))
    axes.set_ylim(-scale, scale)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss minus that before training (nats/token)")
    axes.set_title(
        "Learning-rate range test: the same rows before and while they are trained on", loc="left", fontsize=11
    )
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    save_figure(canvas, path)
