"""Picture of a search: the loss of every arm from rung to rung, and the held-out differences."""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import ceil, log10
from typing import Any

from hf_posenc.core.plotting.figures import COLOURS, figure
from hf_posenc.eval.results.paired import Difference
from hf_posenc.insight.search.halving import Halving
from hf_posenc.insight.search.result import SearchResult

NAMED = 6  # arms with a colour and a name
GREY = "#bbbbbb"
TICKS = 5
WIDE = 30  # times the typical difference: more than a linear scale can show


def drawing(result: SearchResult, halving: Halving) -> bytes:
    """The picture as PNG."""
    canvas, left = figure(12.0, 5.0)
    left.remove()
    left, right = canvas.subplots(1, 2)
    rungs(left, result, halving)
    differences(right, result)
    content = io.BytesIO()
    canvas.savefig(content, format="png")
    return content.getvalue()


def rungs(axes: Any, result: SearchResult, halving: Halving) -> None:
    """Mean loss of every arm over the windows so far, against their number."""
    windows = [0]
    for count in result.about["plan"]["rungs"]:
        windows.append(windows[-1] + count)
    named = [arm.label for arm in result.trials if arm.state == "measured"][:NAMED]
    for label in sorted(halving.losses, key=lambda label: label in named):
        values = list(halving.losses[label].values())
        ends = [count for count in windows[1:] if count <= len(values)]
        means = [sum(values[:count]) / count for count in ends]
        look: dict[str, Any] = {"color": GREY, "linewidth": 0.7, "markersize": 2, "zorder": 1}
        if label in named:
            look = {"color": COLOURS[named.index(label)], "label": label, "markersize": 5, "zorder": 3}
        axes.plot(ends, means, marker="o", **look)
    axes.set_xscale("log")
    axes.set_xticks(windows[1:], [str(count) for count in windows[1:]])
    axes.minorticks_off()
    axes.set_xlabel("windows of the text to choose on")
    axes.set_ylabel("cross-entropy loss (nats/token)")
    axes.set_title("Arms, rung by rung", loc="left", fontsize=11)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False, fontsize=8)  # off the curves
    axes.spines[["top", "right"]].set_visible(False)


def differences(axes: Any, result: SearchResult) -> None:
    """The chosen arm minus every other line of the held-out table, with 95 % intervals."""
    lines = [line for line in result.held_out if line.difference is not None][::-1]
    for y, line in enumerate(lines):
        d = line.difference
        if d is not None and d.low is not None and d.high is not None:
            axes.plot([d.low, d.high], [y, y], color=COLOURS[5], linewidth=1.5)
        axes.plot([d.difference if d else 0.0], [y], marker="o", color=COLOURS[5], markersize=5)
    axes.axvline(0.0, color="#555555", linewidth=1.0)
    axes.set_yticks(range(len(lines)), [line.label for line in lines], fontsize=8)
    plain_scale(axes, [value for line in lines for value in ends_of(line.difference)])
    axes.set_xlabel("chosen − it (nats/token), held-out text; left of 0 the chosen is better")
    axes.set_title(f"Chosen: {result.chosen.label}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)


def ends_of(found: Difference | None) -> list[float]:
    """A difference and the ends of its interval, as far as there are any."""
    return [] if found is None else [v for v in (found.difference, found.low, found.high) if v is not None]


def plain_scale(axes: Any, values: Sequence[float]) -> None:
    """Scale the x axis for differences of any size, with few ticks, as plain numbers.

    Differences of one order of magnitude have a linear scale. Where some are many times others, as of a scheme that
    fails beside schemes that work, it is logarithmic beyond the typical one, so that the small ones stay visible.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    sizes = sorted(abs(value) for value in values if value)
    typical = sizes[len(sizes) // 2] if sizes else 0.0
    if sizes and sizes[-1] > WIDE * typical:
        near = 10.0 ** ceil(log10(typical))
        axes.set_xscale("symlog", linthresh=near)
        last = ceil(log10(sizes[-1] / near))
        steps = [near * 10.0**n for n in range(0, last + 1, max(1, ceil(last / 2)))]
        low, high = min(0.0, *values), max(0.0, *values)
        axes.set_xticks(
            [*(-one for one in steps[::-1] if -one >= 2 * low), 0.0, *(one for one in steps if one <= 2 * high)]
        )
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=TICKS - 1, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def plain(value: float) -> str:
    """Format a tick without an exponent and without trailing zeros: ``−0.0005``."""
    digits = f"{value:.10f}".rstrip("0").rstrip(".")
    return digits.replace("-", "−") if float(digits) else "0"
