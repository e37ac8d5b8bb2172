"""Plot schemes: compute the numbers of each (sheets), then draw one figure of all sheets, or save both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_posenc.core.files.staged import staged
from hf_posenc.core.plotting import save_figure
from hf_posenc.errors import OptionOutOfRange, OutsideModel
from hf_posenc.insight.plots.kinds import list_plots, plot_of
from hf_posenc.insight.plots.marks import figure
from hf_posenc.insight.plots.models import Model, Shapes
from hf_posenc.insight.plots.registry import NothingToPlot, Plot, Sheet, Target, View
from hf_posenc.schemes.build import positions_supported
from hf_posenc.schemes.entry import Entry, Given, entries_of
from hf_posenc.schemes.spec import parts_of_spec

FILES = ".png", ".svg"


@dataclass(frozen=True)
class PlotRequest:
    """Schemes to plot, and how.

    Attributes:
        entries: the schemes with their options.
        source: what the schemes are built on: a model, or shapes; the plot's length overrides that of shapes.
        view: positions, heads and channels to show.
        lengths: ``factor``, ``target_length``, ``trained_length``, if set.
        layer: layer whose scheme is shown.
    """

    entries: Sequence[Entry]
    source: Model | Shapes = field(default_factory=Shapes)
    view: View = field(default_factory=View)
    lengths: dict[str, Any] = field(default_factory=dict)
    layer: int = 0

    @property
    def differs_by_layer(self) -> bool:
        """Whether a scheme may differ between layers: in a model always, otherwise if it has ``layers_of``."""
        parts = (cls for entry in self.entries if entry.scheme is not None for cls, _ in parts_of_spec(entry.scheme))
        return isinstance(self.source, Model) or any(hasattr(cls, "layers_of") for cls in parts)

    @contextmanager
    def target(self, entry: Entry, plot: Plot) -> Iterator[Target]:
        """Build a scheme with the requested lengths, or by default with those of the plot.

        If the scheme cannot extend to the plot's factor, the factor is 1.
        """
        source, lengths = self.source, self.lengths
        if isinstance(source, Shapes):
            lengths = {"trained_length": plot.trained_length, **lengths}
        fixed = plot.factor == 1.0 or bool({"factor", "target_length"} & {*lengths, *entry.lengths})
        default: dict[str, Any] = {} if fixed else {"factor": plot.factor}
        with ExitStack() as stack:
            try:
                target = stack.enter_context(source.target(entry, {**default, **lengths}, self.layer))
            except OptionOutOfRange:  # the position table or the scheme ends before
                if not default:
                    raise
                target = stack.enter_context(source.target(entry, lengths, self.layer))
            yield target


def plots_of(request: PlotRequest) -> list[Plot]:
    """Return the plots that accept all of the schemes and show at least one, the default one first.

    Raises:
        NothingToPlot: no plot shows all of the schemes.
        OptionOutOfRange: an option fits the lengths of no plot.
    """
    accepting, refused = [], []
    for plot in list_plots():
        try:
            found = [applicability(plot, request, entry) for entry in request.entries]
        except OptionOutOfRange as error:  # such as a window longer than this plot's trained length
            refused.append(error)
            continue
        shows = [shown for _, shown in found]
        if all(accepted for accepted, _ in found) and any(shows):
            accepting.append((plot, (not plot.general, all(shows))))
    if refused and not accepting:
        raise refused[0]
    if not accepting:
        names = ", ".join(entry.label for entry in request.entries)
        raise NothingToPlot(f"No plot shows {names} in one figure. Plot them separately, or on another model.")
    first, _ = max(accepting, key=lambda ranked: ranked[1])
    return [first, *(plot for plot, _ in accepting if plot is not first)]


def applicability(plot: Plot, request: PlotRequest, entry: Entry) -> tuple[bool, bool]:
    """Return whether a plot accepts a scheme, and whether it shows it."""
    with request.target(entry, plot) as target:
        accepts = plot.accepts(target)
        return accepts, accepts and plot.shows(target)


def sheets(plot: Plot, request: PlotRequest) -> list[Sheet]:
    """Compute the numbers of a plot, one sheet per scheme.

    Raises:
        NothingToPlot: a scheme has nothing that the plot shows.
        OutsideModel: a scheme needs the projections of a layer, and there is no model.
        PosEncError: a scheme, an option or a length is refused.
    """
    return [sheet(plot, request, entry) for entry in request.entries]


def sheet(plot: Plot, request: PlotRequest, entry: Entry) -> Sheet:
    """Compute the numbers of one scheme; raises as `sheets`."""
    with request.target(entry, plot) as target:
        if not plot.accepts(target):
            raise NothingToPlot(
                f"Scheme {entry.label!r} has nothing that the plot {plot.name!r} shows. "
                f"`hf-posenc show {entry.label} --list` names its plots."
            )
        view = request.view
        if view.length is None:
            end, most = positions_supported(target.scheme), plot.length(target)
            view = replace(view, length=most if end is None else min(most, end))
        try:
            return Sheet(entry.label, plot.numbers(target, view))
        except OutsideModel as error:
            what = str(error).partition(",")[0]
            raise OutsideModel(f"{what}. Plot it in a model, such as --model starter:llama.") from error


def check_view(request: PlotRequest, plots: Sequence[Plot]) -> None:
    """Refuse fields of the view that none of the plots reads."""
    read = {name for plot in plots for name in plot.options}
    for name, value in asdict(request.view).items():
        if name not in read and value is not None:
            names = ", ".join(plot.name for plot in plots)
            raise OptionOutOfRange(f"{name}={value!r} has no effect on {names}. Leave it out, or choose another plot.")


def show(schemes: str | Iterable[Given], plots: str | Sequence[str] | None = None, **how: Any) -> dict[str, Any]:
    """Plot schemes side by side.

    Args:
        schemes: as in ``hf-posenc compare``: ``"yarn"``, ``"rope,self_extend:group=8"``, ``("yarn", {"factor": 8})``.
        plots: names of plots; by default the first that shows the schemes.
        **how: ``factor``, ``target_length``, ``trained_length``; ``length``, ``position``, ``head``,
            ``channels`` as in `View`; ``layer``; ``model``, a loaded model without a scheme, or ``shapes``, `Shapes` of
            a model without weights.

    Returns:
        A matplotlib figure for each plot, by name.

    Raises:
        MissingPackage: matplotlib is not installed.
        PosEncError: a scheme, an option, a length or a plot is refused; or none of the plots reads a part of the view.
    """
    request = request_of(schemes, **how)
    if plots is None:
        chosen = plots_of(request)[:1]
    else:
        chosen = [plot_of(name) for name in ([plots] if isinstance(plots, str) else plots)]
    check_view(request, chosen)
    return {plot.name: figure(plot, sheets(plot, request)) for plot in chosen}


def numbers(schemes: str | Iterable[Given], plot: str, **how: Any) -> list[Sheet]:
    """Compute the numbers of a plot, one `Sheet` per scheme; arguments and errors as in `show`."""
    request = request_of(schemes, **how)
    check_view(request, [plot_of(plot)])
    return sheets(plot_of(plot), request)


def request_of(
    schemes: str | Iterable[Given],
    *,
    model: Any = None,
    shapes: Shapes | None = None,
    layer: int = 0,
    factor: float | None = None,
    target_length: int | None = None,
    trained_length: int | None = None,
    **view: Any,
) -> PlotRequest:
    """Build the request of `show`; ``view`` are the fields of `View`.

    Raises:
        PosEncError: a scheme or option is refused.
    """
    lengths = {"factor": factor, "target_length": target_length, "trained_length": trained_length}
    return PlotRequest(
        entries_of(schemes),
        Model(model) if model is not None else shapes or Shapes(),
        View(**view),
        {name: value for name, value in lengths.items() if value is not None},
        layer,
    )


def check_ending(path: Path) -> None:
    """Refuse a file name with a suffix of another format."""
    if path.suffix.lower() not in FILES:
        raise OptionOutOfRange(f"A plot's file must end in {', '.join(FILES)}, got {str(path)!r}. Rename it.")


def save(computed: Sequence[tuple[Plot, Sequence[Sheet]]], path: Path) -> list[Path]:
    """Write one file per plot with its sheets, all of them or none; several files are named after their plots.

    Returns:
        The files.
    """
    names = [path.name if len(computed) == 1 else f"{path.stem}-{plot.name}{path.suffix}" for plot, _ in computed]
    with staged(path.parent) as staging:
        for name, (plot, sheets) in zip(names, computed, strict=True):
            save_figure(figure(plot, sheets), staging / name)
    return [path.with_name(name) for name in names]


def to_dict(plot: Plot, sheets: Sequence[Sheet]) -> dict[str, Any]:
    """Return the numbers of a plot as plain values for JSON."""
    schemes = [{"label": sheet.label, "numbers": dict(sheet.numbers)} for sheet in sheets]
    text = json.dumps(schemes, default=Tensor.tolist)
    plain = json.loads(text, parse_constant=lambda _: None)  # infinite and NaN numbers become null
    return {"picture": plot.name, "title": plot.title, "schemes": plain}
