"""Render a matplotlib figure as inline SVG: small, deterministic, in the text colour and font of the page.

Removed is what matplotlib writes for stand-alone files: prologue, global style, metadata, element ids (they would occur
twice in one page) and decimals below the visible resolution.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

NEUTRAL = "#010203"
"""Placeholder that becomes ``currentColor``, the text colour of the page in light and dark mode."""

SETTINGS: Any = {
    "svg.fonttype": "none",  # keep text as text: it can be selected, searched and read aloud
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": NEUTRAL,
    "axes.edgecolor": NEUTRAL,
    "axes.labelcolor": NEUTRAL,
    "xtick.color": NEUTRAL,
    "ytick.color": NEUTRAL,
    "text.parse_math": False,  # a name may hold a dollar sign
}

TAG = re.compile(r"<[^>]*>")
PART_NAME = re.compile(r' id="(?!m[0-9a-f]{10}"|p[0-9a-f]{10}")[^"]*"')
LETTERS = re.compile(r"font-family: [^;\"]*;? ?")
DIGITS = re.compile(r"(\.\d{2})\d+")


def svg_of(figure: Any, described: str) -> str:
    """Render a figure as an ``<svg>`` element.

    Args:
        figure: a matplotlib figure, drawn under `SETTINGS`.
        described: text alternative (``aria-label``) for screen readers.
    """
    from matplotlib import rc_context

    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context(SETTINGS | {"svg.hashsalt": described}):
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>", "", text, flags=re.DOTALL)
    text = TAG.sub(lambda tag: shorten_tag(tag.group()), text)
    text = re.sub(r"<defs>\s*</defs>|<!--.*?-->|\s*\n\s*", " ", text, flags=re.DOTALL)
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups()  # type: ignore[union-attr]
    head = f'<svg role="img" aria-label="{escape(described)}" viewBox="0 0 {width} {height}" width="{width}pt">'
    return head + re.sub(r"^<svg[^>]*>", "", text).strip()


def shorten_tag(tag: str) -> str:
    """Shorten one tag: drop ids and fonts, round numbers, replace the placeholder colour."""
    tag = LETTERS.sub("", PART_NAME.sub("", tag)).replace(NEUTRAL, "currentColor").replace("xlink:href", "href")
    return DIGITS.sub(r"\1", tag)
