"""Create and save matplotlib figures, with the palette and the length axis of all plots.

Colour-blind readers can distinguish the palette of Okabe and Ito (Color Universal Design, 2008). Plots also give every
line its own marker.

`svg_of` renders a figure for a page: small, deterministic, in the page's colour and font. It omits the parts that only
stand-alone files need: prologue, global style, metadata, element ids (a page would have them twice) and invisible
decimals.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.errors import MissingPackage

COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#8C8C8C", "#7A5C00")
MARKERS = "osD^vPX*h"
DOTS_PER_INCH = 150
WIDEST = 9.0  # inches; text of a wider figure is illegible when a page shows it at half its size
SIGNED = "PuOr_r"  # colour map of signed numbers: purple below zero, white at zero, orange above
MAGNITUDES = "cividis"  # colour map of magnitudes: dark blue to yellow


def figure(width: float, height: float) -> tuple[Any, Any]:
    """Create a figure with one axes."""
    canvas, (axes,) = panels(width, height, 1, 1)
    return canvas, axes


def panels(width: float, height: float, rows: int, columns: int, *, shared: bool = True) -> tuple[Any, list[Any]]:
    """Create a figure with a grid of axes in reading order. Without pyplot, no window opens and no setting changes."""
    require_matplotlib()
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    return canvas, list(canvas.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False).flat)


def plain(axes: Any) -> None:
    """Style the axes of curves: faint horizontal lines, no box."""
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def require_matplotlib() -> None:
    """Raise `MissingPackage`, which names the extra to install, if matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingPackage("Plots need matplotlib, which is not installed. pip install 'hf-posenc[plot]'") from error


def save_figure(canvas: Any, path: Path) -> None:
    """Write a figure atomically in the format of the file's suffix: reproducible bytes, selectable text."""
    from matplotlib import rc_context

    content, kind = io.BytesIO(), path.suffix.lstrip(".").lower() or "png"
    unset = {"png": ("Software",), "svg": ("Date", "Creator")}.get(kind, ())  # they would differ between runs
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hf_posenc"}):
        canvas.savefig(content, format=kind, metadata=dict.fromkeys(unset))
    write_bytes(path, content.getvalue())


def length_ticks(axes: Any, lengths: Sequence[int], trained_length: int) -> None:
    """Make the x axis logarithmic and label each length with its multiple of the trained length."""
    axes.set_xscale("log", base=2)
    names = length_names(lengths)
    axes.set_xticks(lengths, [f"{name}\n{n / trained_length:g}×" for name, n in zip(names, lengths, strict=True)])
    axes.minorticks_off()


def length_names(lengths: Sequence[int]) -> list[str]:
    """Format lengths as ``1,024``; more than five lengths as ``1k``."""
    short = len(lengths) > 5
    return [f"{length // 1024}k" if short and length % 1024 == 0 else f"{length:,}" for length in lengths]


NEUTRAL = "#010203"
"""Placeholder that becomes ``currentColor``, the text colour of the page in light and dark mode."""

SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: it can be selected, searched and read aloud
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": NEUTRAL,
    "axes.edgecolor": NEUTRAL,
    "axes.labelcolor": NEUTRAL,
    "xtick.color": NEUTRAL,
    "ytick.color": NEUTRAL,
    "text.parse_math": False,  # names may contain a dollar sign
}

TAG = re.compile(r"<[^>]*>")
PART_NAME = re.compile(r' id="(?!m[0-9a-f]{10}"|p[0-9a-f]{10}")[^"]*"')
LETTERS = re.compile(r"font-family: [^;\"]*;? ?")
DIGITS = re.compile(r"(\.\d{2})\d+")


def svg_of(figure: Any, description: str) -> str:
    """Render a figure as an ``<svg>`` element with a description for screen readers."""
    from matplotlib import rc_context

    file = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context(SETTINGS | {"svg.hashsalt": description}):
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>", "", text, flags=re.DOTALL)
    text = TAG.sub(shorten_tag, text)
    text = re.sub(r"<defs>\s*</defs>|<!--.*?-->|\s*\n\s*", " ", text, flags=re.DOTALL)
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups()  # type: ignore[union-attr]
    head = f'<svg role="img" aria-label="{escape(description)}" viewBox="0 0 {width} {height}" width="{width}pt">'
    return head + re.sub(r"^<svg[^>]*>", "", text).strip()


def shorten_tag(match: re.Match[str]) -> str:
    """Shorten a tag: drop ids and fonts, round numbers, replace the placeholder colour."""
    tag = LETTERS.sub("", PART_NAME.sub("", match[0])).replace(NEUTRAL, "currentColor").replace("xlink:href", "href")
    return DIGITS.sub(r"\1", tag)
