"""Write the interactive page beside the built pages, as ``interactive-page.html``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from interactive.page import page_html

FILE = "interactive-page.html"


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.connect("build-finished", write_after)
    return {"version": "1", "parallel_read_safe": True}


def write_after(app: Any, error: Exception | None) -> None:
    """Write the page after a successful HTML build."""
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / FILE).write_text(page_html(), encoding="utf-8")
