"""Animations: the sheets of a plot at each step of a sweep over factor, length or position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hf_posenc.insight.plots.compose import PlotRequest, sheets
from hf_posenc.insight.plots.registry import VIEW, NothingToPlot, Plot, Sheet, Sweep
from hf_posenc.schemes.entry import UNPATCHED, entry_of

FRAMES = 24


def frames(plot: Plot, request: PlotRequest, sweep: Sweep | None = None, count: int = FRAMES) -> list[list[Sheet]]:
    """Compute the sheets of every step of a sweep.

    Args:
        plot: what is drawn.
        request: schemes and view; its factor, length or position is the end of the sweep.
        sweep: the quantity that changes; by default that of the plot.
        count: number of frames.

    Raises:
        NothingToPlot: no quantity is given and the plot has none of its own, or it does not depend on the quantity.
    """
    sweep = sweep or plot.sweep
    if sweep is None:
        raise NothingToPlot(f"The plot {plot.name!r} has no animation of its own. Animate factor, length or position.")
    if sweep in VIEW and sweep not in plot.options:
        raise NothingToPlot(f"The plot {plot.name!r} does not depend on {sweep}. Animate {' or '.join(sweeps(plot))}.")
    return swept(plot, request, sweep, count)


def sweeps(plot: Plot) -> list[str]:
    """The quantities that change a plot."""
    return ["factor", *(name for name in ("length", "position") if name in plot.options)]


def swept(plot: Plot, request: PlotRequest, sweep: Sweep, count: int) -> list[list[Sheet]]:
    """Compute the sheets of every step."""
    if sweep == "position":
        last = count - 1 if request.view.position is None else request.view.position
        positions = sorted({round(n * last / max(1, count - 1)) for n in range(count)})
        return [sheets(plot, replace(request, view=replace(request.view, position=p))) for p in positions]
    if sweep == "length":
        last = request.view.length or longest(plot, request)
        lengths = sorted({max(2, round(last * (n + 1) / count)) for n in range(count)})
        return [sheets(plot, replace(request, view=replace(request.view, length=n))) for n in lengths]
    return [list(frame) for frame in factor_sweep(plot, request, count)]


def factor_sweep(plot: Plot, request: PlotRequest, count: int) -> Iterator[list[Sheet]]:
    """Yield sheets for factors from 1 to the one requested, in steps of equal ratio, at one length."""
    last = request.lengths.get("factor") or max(8.0, plot.factor)
    kept = {name: value for name, value in request.lengths.items() if name == "trained_length"}
    entries = [
        entry_of((e.scheme or UNPATCHED, e.own_options)) if {"factor", "target_length"} & e.options.keys() else e
        for e in request.entries
    ]
    request = replace(request, entries=entries, lengths={**kept, "factor": last})
    view = replace(request.view, length=request.view.length or longest(plot, request))
    for number in range(count):
        factor = last ** (number / max(1, count - 1))
        step = replace(request, view=view, lengths={**kept, "factor": factor})
        yield [replace(sheet, label=f"{sheet.label}, factor {factor:.1f}") for sheet in sheets(plot, step)]


def longest(plot: Plot, request: PlotRequest) -> int:
    """Return the default number of positions of a plot, the largest over the schemes."""
    found = []
    for entry in request.entries:
        with request.target(entry, plot) as target:
            found.append(plot.length(target))
    return max(found)
