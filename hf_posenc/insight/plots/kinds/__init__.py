"""All plots, in one module per subject."""

from __future__ import annotations

from hf_posenc.errors import nearest
from hf_posenc.insight.plots.kinds import codes, positions, scores
from hf_posenc.insight.plots.registry import PLOTS, Plot, UnknownPlot

KINDS = (positions, scores, codes)
"""Modules in order of preference: the default plot of a scheme is the first that shows it."""


def list_plots() -> list[Plot]:
    """Return all plots in order of preference, those registered by others last."""
    rank = {module.__name__: number for number, module in enumerate(KINDS)}
    return sorted(PLOTS.values(), key=lambda plot: rank.get(type(plot).__module__, len(rank)))


def plot_of(name: str) -> Plot:
    """Return the plot with that name, or raise `UnknownPlot`."""
    known = {plot.name: plot for plot in list_plots()}
    if name not in known:
        raise UnknownPlot(f"There is no plot {name!r}.{nearest(name, known)} `hf-posenc show --list` lists them.")
    return known[name]
