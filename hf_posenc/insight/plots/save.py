"""Pictures as files, the same bytes every time: PNG, SVG, GIF, or one page that stands alone."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from torch import Tensor

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.staged import staged
from hf_posenc.core.plotting.svg import NEUTRAL, svg_of
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots.compose import figure
from hf_posenc.insight.plots.registry import Plot, Sheet

ENDINGS = (".png", ".svg", ".html", ".gif")
MOVING = (".gif", ".html")
FRAME_DOTS = 90  # an inch, in animations
MILLISECONDS = 160
PAGE = Path(__file__).parent / "page.html"


@dataclass(frozen=True)
class ComputedPlot:
    """A picture with its numbers: one set of sheets, or one for each frame."""

    picture: Plot
    frames: Sequence[Sequence[Sheet]]
    own_scales: bool = False

    def drawn(self, number: int = -1, **how: Any) -> Any:
        """A frame as a figure; all frames share their scales, unless each scheme has its own."""
        among = [] if self.own_scales else [sheet for frame in self.frames for sheet in frame]
        return figure(self.picture, self.frames[number], among, **how)

    @property
    def words(self) -> str:
        """What is to be seen, for those who do not see it."""
        return f"{self.picture.title}: {', '.join(sheet.label for sheet in self.frames[-1])}"


def check_ending(path: Path, *, moves: bool) -> str:
    """The ending of a file that can be written.

    Raises:
        OptionOutOfRange: it is none of ours, or the file cannot hold what is asked of it.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise OptionOutOfRange(f"A picture's file ends in {', '.join(ENDINGS)}, got {str(path)!r}. Rename it.")
    if moves and ending not in MOVING:
        raise OptionOutOfRange(f"An animation is a .gif or .html, got {str(path)!r}. Rename it, or take no animation.")
    return ending


def save(taken: Sequence[ComputedPlot], path: Path, *, title: str, command: str = "") -> list[Path]:
    """Write pictures, all or none: on one page, or else a file each, numbered by the picture's name.

    Returns:
        The files.

    Raises:
        OptionOutOfRange: the ending is none of `ENDINGS`.
    """
    moves = any(len(one.frames) > 1 for one in taken)
    ending = check_ending(path, moves=moves)
    if ending == ".html":
        write_bytes(path, page(taken, title, command).encode())
        return [path]
    written = []
    with staged(path.parent) as beside:
        for one in taken:
            name = path.name if len(taken) == 1 else f"{path.stem}-{one.picture.name}{path.suffix}"
            write_bytes(beside / name, FILES[ending](one))
            written.append(path.with_name(name))
    return written


def png(taken: ComputedPlot) -> bytes:
    """The last frame."""
    file = io.BytesIO()
    taken.drawn().savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def svg(taken: ComputedPlot) -> bytes:
    """The last frame, letters as letters."""
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": taken.words}):
        drawn = taken.drawn()
        drawn.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator")))
    return file.getvalue().encode()


def gif(taken: ComputedPlot) -> bytes:
    """All frames, over and over; the last stays a little longer."""
    file = io.BytesIO()
    first, *others = pixels(taken)
    lasting = [MILLISECONDS] * len(others) + [6 * MILLISECONDS]
    first.save(file, format="GIF", save_all=True, append_images=others, duration=lasting, loop=0, optimize=True)
    return file.getvalue()


FILES = {".png": png, ".svg": svg, ".gif": gif}


def pixels(taken: ComputedPlot, *, titled: bool = True) -> list[Any]:
    """All frames as images of Pillow, of one size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    found = []
    for number in range(len(taken.frames)):
        canvas = FigureCanvasAgg(taken.drawn(number, titled=titled))
        canvas.figure.set_dpi(FRAME_DOTS)
        canvas.draw()
        found.append(Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB"))
    palette = found[-1].quantize(128, method=Image.Quantize.MAXCOVERAGE)  # one for all, or colours flicker
    return [frame.quantize(128, palette=palette, dither=Image.Dither.NONE) for frame in found]


def page(taken: Sequence[ComputedPlot], title: str, command: str) -> str:
    """The page as HTML: pictures inside, nothing fetched; a script only where something moves."""
    moves = any(len(one.frames) > 1 for one in taken)
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        title=escape(title),
        pictures="\n".join(map(section, taken)),
        command=escape(command),
        script=SCRIPT if moves else "",
        policy=" script-src 'unsafe-inline';" if moves else "",
    )


def section(taken: ComputedPlot) -> str:
    """One picture on the page: drawn in the page's own colours, or frame by frame under a slider."""
    still = len(taken.frames) == 1
    shown = svg_of(taken.drawn(ink=NEUTRAL, titled=False), taken.words) if still else moving(taken)
    return f"<figure><figcaption>{escape(taken.picture.title)}</figcaption>{shown}</figure>"


def moving(taken: ComputedPlot) -> str:
    """Frames as images, one of them shown."""
    sources = []
    for frame in pixels(taken, titled=False):
        file = io.BytesIO()
        frame.save(file, format="PNG", optimize=True)
        sources.append("data:image/png;base64," + base64.b64encode(file.getvalue()).decode())
    last = len(sources) - 1
    return (
        f'<div class="film" data-frames="{escape(json.dumps(sources))}">'
        f'<img src="{sources[-1]}" alt="{escape(taken.words)}">'
        f'<div><button type="button">Play</button><input type="range" min="0" max="{last}" value="{last}" '
        'aria-label="frame"></div></div>'
    )


def to_dict(taken: ComputedPlot) -> dict[str, Any]:
    """The numbers behind a picture, as JSON carries them."""
    frames = [[{"label": s.label, "numbers": jsonable(s.numbers)} for s in frame] for frame in taken.frames]
    about = {"picture": taken.picture.name, "title": taken.picture.title}
    return about | ({"schemes": frames[0]} if len(frames) == 1 else {"frames": frames})


def jsonable(value: Any) -> Any:
    """Tensors as lists; what is no number, as where nothing is seen, as null."""
    if isinstance(value, Tensor):
        return jsonable(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): jsonable(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


SCRIPT = """<script>
for (const film of document.querySelectorAll(".film")) {
  const frames = JSON.parse(film.dataset.frames), image = film.querySelector("img");
  const slider = film.querySelector("input"), button = film.querySelector("button");
  let timer = null;
  const show = n => { slider.value = n; image.src = frames[n]; };
  const stop = () => { clearInterval(timer); timer = null; button.textContent = "Play"; };
  slider.addEventListener("input", () => { stop(); show(+slider.value); });
  button.addEventListener("click", () => {
    if (timer) { stop(); return; }
    button.textContent = "Pause";
    timer = setInterval(() => show((+slider.value + 1) % frames.length), 160);
  });
}
</script>"""
