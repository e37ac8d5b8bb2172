"""Plots of positional schemes, computed by the code that models run.

    from hf_posenc.insight.plots import show
    show(["yarn", "ntk"], "frequencies", factor=8)["frequencies"].savefig("bars.png")
    show("rope")                                       # its default plot

Plots read hooks of schemes, so they also work for your own schemes. `register_plot` adds a plot. The command is
``hf-posenc show``.
"""

from hf_posenc.insight.plots.compose import numbers, show
from hf_posenc.insight.plots.kinds import list_plots
from hf_posenc.insight.plots.models import Model, Shapes
from hf_posenc.insight.plots.registry import Plot, Sheet, Target, View, register_plot

__all__ = [
    "Model", "Plot", "Shapes", "Sheet", "Target", "View", "list_plots", "numbers", "register_plot", "show",
]  # fmt: skip
