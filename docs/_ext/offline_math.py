"""MathJax from the package sphinx-mathjax-offline, copied into the site: formulas need no network.

That package is also a Sphinx extension, which copies all of its 24 MB. One file is enough: the one that draws formulas
as SVG, with its glyphs inside, so that it works from ``file://`` as well.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError
from sphinx.util.fileutil import copy_asset_file

PACKAGE = "sphinx-mathjax-offline"
SCRIPT = "tex-svg.js"


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.setup_extension("sphinx.ext.mathjax")
    app.config.mathjax_path = SCRIPT
    app.connect("build-finished", copy_script)
    return {"version": "1", "parallel_read_safe": True}


def copy_script(app: Any, failure: Exception | None) -> None:
    """Copy the script beside the other static files of the site."""
    if failure is None and app.builder.format == "html":
        copy_asset_file(script(), Path(app.outdir) / "_static" / SCRIPT)


def script() -> Path:
    """The script in the installed package.

    Raises:
        ExtensionError: it is not installed.
    """
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise ExtensionError(f"{PACKAGE} is not installed. Run: pip install 'hf-posenc[docs]'")
    return Path(found.origin).parent / "static" / "mathjax" / SCRIPT
