"""Plots of positional schemes, computed by the code that models run.

    from hf_posenc.insight.plots import show
    show(["yarn", "ntk"], "frequencies", factor=8)["frequencies"].savefig("bars.png")
    show("rope")                                       # its most informative plot

A plot shows hooks of a scheme, so the same plots work for schemes of your own. `register_plot` adds a plot. The command
is ``hf-posenc show``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hf_posenc.insight.plots.compose import numbers as numbers
    from hf_posenc.insight.plots.compose import show as show
    from hf_posenc.insight.plots.kinds import list_plots as list_plots
    from hf_posenc.insight.plots.models import Model as Model
    from hf_posenc.insight.plots.models import Shapes as Shapes
    from hf_posenc.insight.plots.registry import Plot as Plot
    from hf_posenc.insight.plots.registry import Scales as Scales
    from hf_posenc.insight.plots.registry import Sheet as Sheet
    from hf_posenc.insight.plots.registry import Target as Target
    from hf_posenc.insight.plots.registry import View as View
    from hf_posenc.insight.plots.registry import register_plot as register_plot

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "hf_posenc.insight.plots.compose": ("numbers", "show"),
        "hf_posenc.insight.plots.kinds": ("list_plots",),
        "hf_posenc.insight.plots.models": ("Model", "Shapes"),
        "hf_posenc.insight.plots.registry": ("Plot", "Scales", "Sheet", "Target", "View", "register_plot"),
    },
)
