"""Draw missing pictures of schemes before the pages of schemes and the gallery are written."""

from __future__ import annotations

from typing import Any

from make_pictures import FOLDER, chosen, make_all


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.connect("builder-inited", draw_missing, priority=400)  # the pages of schemes are written at 500
    return {"version": "1", "parallel_read_safe": True}


def draw_missing(app: Any) -> None:
    """Draw missing pictures for an HTML build, in about a second each.

    ``python docs/make_pictures.py schemes`` draws all pictures again.
    """
    if app.builder.format == "html":
        make_all([one for one in chosen(["schemes"]) if not (FOLDER / one.file).exists()])
