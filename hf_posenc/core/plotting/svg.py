"""A matplotlib figure as SVG to stand inside a page: small, in the page's colours and letters, the same every time.

What matplotlib writes for a file of its own is taken off: prologue, global style, licence data, names of parts that
would occur twice in one page, and digits nobody can see.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

NEUTRAL = "#010203"
"""A colour that stands for the page's text colour, light or dark."""

SETTINGS: Any = {
    "svg.fonttype": "none",  # letters stay letters: to be selected, searched, and read aloud
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
NO_TURN = re.compile(r' transform="rotate\(-0 [^"]*"')
DIGITS = re.compile(r"(\.\d{2})\d+")


def svg_of(figure: Any, described: str) -> str:
    """The figure as an ``<svg>`` element.

    Args:
        figure: of matplotlib, drawn under `SETTINGS`.
        described: what the picture shows, for those who do not see it.
    """
    from matplotlib import rc_context

    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context(SETTINGS | {"svg.hashsalt": described}):
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>", "", text, flags=re.DOTALL)
    text = TAG.sub(lambda tag: tidied(tag.group()), text)
    text = re.sub(r"<defs>\s*</defs>|<!--.*?-->|\s*\n\s*", " ", text, flags=re.DOTALL)
    text = re.sub(r"(?<=>) (?=<)| (?=z )|(?<=z) (?=\")", "", without_bare_groups(text))
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups()  # type: ignore[union-attr]
    head = f'<svg role="img" aria-label="{escape(described)}" viewBox="0 0 {width} {height}" width="{width}pt">'
    return head + re.sub(r"^<svg[^>]*>", "", text).strip()


def tidied(tag: str) -> str:
    """One tag; the texts between tags are left alone."""
    tag = LETTERS.sub("", PART_NAME.sub("", tag)).replace(NEUTRAL, "currentColor").replace("xlink:href", "href")
    return NO_TURN.sub("", DIGITS.sub(r"\1", tag))


def without_bare_groups(text: str) -> str:
    """``<g>`` without attributes, of which matplotlib puts several around everything, taken off with its end."""
    kept: list[bool] = []

    def judged(tag: re.Match[str]) -> str:
        if tag.group() == "</g>":
            return "</g>" if kept.pop() else ""
        if not tag.group().endswith("/>"):
            kept.append(tag.group() != "<g>")
            return tag.group() if kept[-1] else ""
        return ""  # an empty group

    return re.sub(r"</g>|<g(?=[\s/>])[^>]*>", judged, text)
