"""Taking a picture: schemes one after the other in front of it, then one figure of all of them.

order  what is asked for, with the picture's own lengths where nothing is
sheets the numbers, one a scheme; frames the same at each step of a sweep
figure drawn from sheets alone
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from hf_posenc.core.plotting.figures import DOTS_PER_INCH, require_matplotlib
from hf_posenc.core.plotting.svg import SETTINGS
from hf_posenc.errors import OptionOutOfRange, OutsideModel
from hf_posenc.insight.plots.models import Shapes, Source
from hf_posenc.insight.plots.registry import (
    NothingToPlot,
    Plot,
    Sheet,
    Sweep,
    View,
    list_plots,
)
from hf_posenc.insight.plots.target import Target
from hf_posenc.schemes.build import reach_of
from hf_posenc.schemes.entry import UNPATCHED, Entry, entry_of

FRAMES = 24
DARK = "#1a1a1a"


@dataclass(frozen=True)
class PlotRequest:
    """What is asked for.

    Attributes:
        entries: the schemes.
        source: what they are built on; None for the shapes of an imagined host.
        view: how they are looked at.
        lengths: ``factor``, ``target_length``, ``trained_length``, where given.
        layer: whose scheme.
        shapes: of the imagined host, but for lengths that are given or a picture's own.
    """

    entries: Sequence[Entry]
    source: Source | None = None
    view: View = field(default_factory=View)
    lengths: dict[str, Any] = field(default_factory=dict)
    layer: int = 0
    shapes: Shapes = field(default_factory=Shapes)

    @contextmanager
    def subject(self, entry: Entry, picture: Plot) -> Iterator[Target]:
        """A scheme with the lengths asked for, or else the picture's; factor 1 where it ends before that."""
        given = {**self.lengths, **entry.lengths}
        if self.source is None and "trained_length" not in given:
            given["trained_length"] = picture.trained_length
        source = self.shapes if self.source is None else self.source
        built: dict[str, Any] = {"options": entry.own_options, "label": entry.label, "layer": self.layer}
        with ExitStack() as stack:
            if {"factor", "target_length"} & given.keys() or picture.factor == 1.0:
                yield stack.enter_context(source.subject(entry.scheme, **built, **given))
                return
            try:
                subject = stack.enter_context(source.subject(entry.scheme, **built, factor=picture.factor, **given))
            except OptionOutOfRange:  # a table ends, or the scheme does
                subject = stack.enter_context(source.subject(entry.scheme, **built, **given))
            yield subject


def plots_of(order: PlotRequest) -> list[Plot]:
    """The pictures that all of the schemes can be drawn in, and at least one has something for.

    Raises:
        OptionOutOfRange: an option fits the lengths of no picture.
    """
    return [picture for picture, _ in fitting(order)]


def first_plot(order: PlotRequest) -> Plot:
    """The picture that says most of these schemes.

    Raises:
        NothingToShow: there is none: the schemes have no hook in common that a picture shows.
        OptionOutOfRange: an option fits the lengths of no picture.
    """
    found = fitting(order)
    if not found:
        names = ", ".join(entry.label for entry in order.entries)
        raise NothingToPlot(f"No picture shows {names} in one figure. Draw them apart, or on another model.")
    of_all = (picture for picture, told in found if all(told))
    of_some = (picture for picture, told in found if any(told))
    return next(of_all, None) or next(of_some, found[0][0])


def fitting(order: PlotRequest) -> list[tuple[Plot, list[bool]]]:
    """The pictures of `plots_of`, and which of the schemes each tells something of. Raises as that does."""
    found, refused = [], []
    for picture in list_plots():
        try:
            judged = [judge(picture, order, entry) for entry in order.entries]
        except OptionOutOfRange as error:  # such as a window longer than this picture's trained length
            refused.append(error)
            continue
        if all(takes for takes, _, _ in judged) and any(shows for _, shows, _ in judged):
            found.append((picture, [tells for _, _, tells in judged]))
    if refused and not found:
        raise refused[0]
    return found


def judge(picture: Plot, order: PlotRequest, entry: Entry) -> tuple[bool, bool, bool]:
    """Whether a picture takes a scheme, shows it, and tells something of it."""
    with order.subject(entry, picture) as subject:
        takes = picture.takes(subject)
        return takes, takes and picture.shows(subject), takes and picture.tells(subject)


def sheets(picture: Plot, order: PlotRequest) -> list[Sheet]:
    """The numbers behind a picture, one sheet a scheme.

    Raises:
        NothingToShow: a scheme has nothing that the picture shows.
        OutsideModel: a scheme reads a layer's own projections, and there is no model.
        PosEncError: a scheme, an option or a length is refused.
    """
    return [sheet(picture, order, entry) for entry in order.entries]


def sheet(picture: Plot, order: PlotRequest, entry: Entry) -> Sheet:
    """The numbers of one scheme. Raises as `sheets` does."""
    with order.subject(entry, picture) as subject:
        if not picture.takes(subject):
            raise NothingToPlot(
                f"Scheme {entry.label!r} has nothing that the picture {picture.name!r} shows. "
                f"`hf-posenc show {entry.label} --list` names its pictures."
            )
        view = order.view
        if view.length is None:
            end, most = reach_of(subject.scheme), picture.length(subject)
            view = replace(view, length=most if end is None else min(most, end))
        try:
            return Sheet(entry.label, picture.numbers(subject, view))
        except OutsideModel as error:
            what = str(error).partition(",")[0]
            raise OutsideModel(f"{what}. Look at it in a model, such as --model starter:llama.") from error


def frames(picture: Plot, order: PlotRequest, sweep: Sweep | None = None, count: int = FRAMES) -> list[list[Sheet]]:
    """The sheets of every step of a sweep.

    Args:
        picture: what is drawn.
        order: what is asked for; its factor, length or position is where the sweep ends.
        sweep: what changes; by default what the picture's own animation changes.
        count: steps.

    Raises:
        NothingToShow: the picture has no animation of its own, and none is asked for.
    """
    sweep = sweep or picture.sweep
    if sweep is None:
        raise NothingToPlot(
            f"The picture {picture.name!r} does not move. Ask for factor, length or position to change."
        )
    if sweep == "position":
        last = count - 1 if order.view.position is None else order.view.position
        places = sorted({round(n * last / max(1, count - 1)) for n in range(count)})
        return [sheets(picture, replace(order, view=replace(order.view, position=p))) for p in places]
    if sweep == "length":
        last = order.view.length or longest(picture, order)
        lengths = sorted({max(2, round(last * (n + 1) / count)) for n in range(count)})
        return [sheets(picture, replace(order, view=replace(order.view, length=n))) for n in lengths]
    return [list(frame) for frame in of_factors(picture, order, count)]


def of_factors(picture: Plot, order: PlotRequest, count: int) -> Iterator[list[Sheet]]:
    """From factor 1 to the one asked for, at one length, in steps of equal ratio."""
    last = order.lengths.get("factor") or max(8.0, picture.factor)
    kept = {name: value for name, value in order.lengths.items() if name == "trained_length"}
    entries = [
        entry_of((e.scheme or UNPATCHED, e.own_options)) if {"factor", "target_length"} & e.options.keys() else e
        for e in order.entries
    ]
    order = replace(order, entries=entries, lengths={**kept, "factor": last})
    still = replace(order.view, length=order.view.length or longest(picture, order))
    for number in range(count):
        factor = last ** (number / max(1, count - 1))
        step = replace(order, view=still, lengths={**kept, "factor": factor})
        yield [replace(sheet, label=f"{sheet.label}, factor {factor:.1f}") for sheet in sheets(picture, step)]


def longest(picture: Plot, order: PlotRequest) -> int:
    """Positions a picture looks at where nothing is asked for."""
    found = []
    for entry in order.entries:
        with order.subject(entry, picture) as subject:
            found.append(picture.length(subject))
    return max(found)


def figure(
    picture: Plot,
    drawn: Sequence[Sheet],
    among: Sequence[Sheet] | None = None,
    *,
    ink: str = DARK,
    titled: bool = True,
) -> Any:
    """A matplotlib figure of some sheets.

    Args:
        picture: whose sheets they are.
        drawn: what to draw.
        among: the sheets that share a scale; by default those drawn, and none where each shall have its own.
        ink: colour of letters and lines.
        titled: whether the figure says what it shows.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    colours = {name: ink for name, value in SETTINGS.items() if value == SETTINGS["text.color"]}
    with rc_context({**SETTINGS, **colours}):
        canvas = Figure(figsize=(6.0, 4.0), dpi=DOTS_PER_INCH, layout="constrained")
        picture.draw(canvas, drawn, drawn if among is None else among)
        heading = [text for text in (picture.title if titled else "", canvas.get_suptitle()) if text]
        if heading:
            canvas.suptitle(", ".join(heading), fontsize=11, x=0.01, ha="left")
        return canvas
