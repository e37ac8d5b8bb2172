"""Plot schemes from Python or a notebook: schemes in, figures or numbers out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hf_posenc.errors import NotPatched
from hf_posenc.insight.plots.compose import (
    PlotRequest,
    check_view,
    figure,
    first_plot,
    plot_of,
    sheets,
)
from hf_posenc.insight.plots.models import Model, Shapes, carried
from hf_posenc.insight.plots.registry import (
    VIEW,
    Plot,
    Sheet,
    View,
)
from hf_posenc.schemes.entry import Given, entries_of

LENGTHS = ("factor", "target_length", "trained_length")


def show(schemes: str | Iterable[Given] | None, plots: str | Sequence[str] | None = None, **how: Any) -> dict[str, Any]:
    """Plot schemes side by side.

    Args:
        schemes: as for ``hf-posenc compare``: ``"yarn"``, ``"rope,self_extend:group=8"``, ``("yarn", {"factor": 8})``;
            None for the one that ``model`` carries, which is shown as it is, with what it has learned.
        plots: names of plots; by default the most informative one for the schemes.
        **how: ``factor``, ``target_length``, ``trained_length``; ``length``, ``start``, ``position``, ``head``,
            ``channels``, ``vectors`` as in `View`; ``layer``; ``model``, a live model, or ``shapes``, `Shapes` of a
            model without weights.

    Returns:
        A matplotlib figure for each plot, by name.

    Raises:
        MissingPackage: matplotlib is not installed.
        PosEncError: a scheme, an option, a length or a plot is refused; or none of the plots reads a part of the view.
    """
    request = request_of(schemes, **how)
    chosen = chosen_plots(plots, request)
    check_view(request, chosen)
    return {plot.name: figure(plot, sheets(plot, request)) for plot in chosen}


def numbers(schemes: str | Iterable[Given] | None, plot: str, **how: Any) -> list[Sheet]:
    """Compute the numbers of a plot, one `Sheet` per scheme; arguments and errors as in `show`."""
    request = request_of(schemes, **how)
    check_view(request, [plot_of(plot)])
    return sheets(plot_of(plot), request)


def chosen_plots(plots: str | Sequence[str] | None, request: PlotRequest) -> list[Plot]:
    """Return the named plots, or the most informative one."""
    if plots is None:
        return [first_plot(request)]
    return [plot_of(name) for name in ([plots] if isinstance(plots, str) else plots)]


def request_of(
    schemes: str | Iterable[Given] | None,
    *,
    model: Any = None,
    shapes: Shapes | None = None,
    layer: int = 0,
    **how: Any,
) -> PlotRequest:
    """Build the request of `show`.

    Raises:
        TypeError: a keyword is unknown.
        NotPatched: no scheme is named, and there is no model that carries one.
        PosEncError: a scheme or option is refused.
    """
    unknown = set(how) - {*VIEW, *LENGTHS}
    if unknown:
        raise TypeError(f"show() got {min(unknown)!r}. It takes model, shapes, layer, {', '.join((*VIEW, *LENGTHS))}.")
    entries = entries_of(schemes) if schemes is not None else [] if model is None else carried(model)
    if not entries:
        raise NotPatched("No scheme is named, and there is no model that carries one. Name a scheme, such as 'rope'.")
    return PlotRequest(
        entries,
        None if model is None else Model(model),
        View(**{name: value for name, value in how.items() if name in VIEW}),
        {name: value for name, value in how.items() if name in LENGTHS and value is not None},
        layer,
        shapes or Shapes(),
    )
