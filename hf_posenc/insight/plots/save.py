"""Frames of animations, and plots as files: deterministic PNG, SVG or GIF."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots.compose import PlotRequest, sheets
from hf_posenc.insight.plots.marks import figure
from hf_posenc.insight.plots.registry import VIEW, NothingToPlot, Plot, Scales, Sheet, Sweep
from hf_posenc.schemes.entry import UNPATCHED, entry_of

FRAME_DOTS = 90  # an inch, in animations
MILLISECONDS = 160
FRAMES = 24
FILES = ".png", ".svg", ".gif"


@dataclass(frozen=True)
class ComputedPlot:
    """A plot with its numbers: one set of sheets, or one per frame."""

    plot: Plot
    frames: Sequence[Sequence[Sheet]]
    same_scale: bool = False

    def drawn(self, number: int = -1) -> Any:
        """Draw a frame; frames share the scale of each scheme, and schemes share one where ``same_scale``."""
        return figure(self.plot, self.frames[number], Scales(self.frames, self.same_scale))

    @property
    def alt_text(self) -> str:
        """Text alternative for screen readers."""
        return f"{self.plot.title}: {', '.join(sheet.label for sheet in self.frames[-1])}"


def check_ending(path: Path, *, animated: bool) -> str:
    """Return the suffix of a file name.

    Raises:
        OptionOutOfRange: the suffix is not supported, or the format cannot hold an animation.
    """
    ending = path.suffix.lower()
    if ending not in FILES:
        raise OptionOutOfRange(f"A plot's file must end in {', '.join(FILES)}, got {str(path)!r}. Rename it.")
    if animated and ending != ".gif":
        raise OptionOutOfRange(f"An animation is a .gif, got {str(path)!r}. Rename it, or leave --animate out.")
    return ending


def save(computed: Sequence[ComputedPlot], path: Path) -> list[Path]:
    """Write plots, all of them or none: one file each, named after the plot where there are several.

    Returns:
        The files.

    Raises:
        OptionOutOfRange: the ending is none of `FILES`.
    """
    animated = any(len(one.frames) > 1 for one in computed)
    ending = check_ending(path, animated=animated)
    written = []
    with staged(path.parent) as staging:
        for one in computed:
            name = path.name if len(computed) == 1 else f"{path.stem}-{one.plot.name}{path.suffix}"
            write_bytes(staging / name, gif(one) if ending == ".gif" else still(one, ending[1:]))
            written.append(path.with_name(name))
    return written


def still(computed: ComputedPlot, kind: str) -> bytes:
    """Encode the last frame as PNG, or as SVG with text as text."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": computed.alt_text}):
        unset = ("Software",) if kind == "png" else ("Date", "Creator")  # which differ from one time to the next
        computed.drawn().savefig(file, format=kind, metadata=dict.fromkeys(unset))
    return file.getvalue()


def gif(computed: ComputedPlot) -> bytes:
    """Encode all frames as a looping GIF; the last frame is shown longer."""
    file = io.BytesIO()
    first, *others = pixels(computed)
    lasting = [MILLISECONDS] * len(others) + [6 * MILLISECONDS]
    first.save(file, format="GIF", save_all=True, append_images=others, duration=lasting, loop=0, optimize=True)
    return file.getvalue()


def pixels(computed: ComputedPlot) -> list[Any]:
    """Render all frames as Pillow images of one size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    found = []
    for number in range(len(computed.frames)):
        canvas = FigureCanvasAgg(computed.drawn(number))
        canvas.figure.set_dpi(FRAME_DOTS)
        canvas.draw()
        found.append(Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB"))
    palette = found[-1].quantize(128, method=Image.Quantize.MAXCOVERAGE)  # one for all, or colours flicker
    return [frame.quantize(128, palette=palette, dither=Image.Dither.NONE) for frame in found]


def to_dict(computed: ComputedPlot) -> dict[str, Any]:
    """Return the numbers of a plot as plain values for JSON."""
    frames = [[{"label": s.label, "numbers": jsonable(s.numbers)} for s in frame] for frame in computed.frames]
    about = {"picture": computed.plot.name, "title": computed.plot.title}
    return about | ({"schemes": frames[0]} if len(frames) == 1 else {"frames": frames})


def jsonable(value: Any) -> Any:
    """Convert tensors to lists, and infinite or NaN numbers to null."""
    if isinstance(value, Tensor):
        return jsonable(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): jsonable(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
        others = ["factor", *(name for name in ("length", "position") if name in plot.options)]
        raise NothingToPlot(f"The plot {plot.name!r} does not depend on {sweep}. Animate {' or '.join(others)}.")
    if sweep == "factor":
        return list(factor_sweep(plot, request, count))
    last, steps = getattr(request.view, sweep), set[Any]()
    if sweep == "position":
        steps = {round(n * (count - 1 if last is None else last) / max(1, count - 1)) for n in range(count)}
    else:
        steps = {max(2, round((last or longest(plot, request)) * (n + 1) / count)) for n in range(count)}
    return [sheets(plot, replace(request, view=replace(request.view, **{sweep: step}))) for step in sorted(steps)]


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
