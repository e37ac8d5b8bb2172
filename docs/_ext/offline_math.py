"""Copy MathJax from the package sphinx-mathjax-offline into the site, so that formulas need no network.

As a Sphinx extension, that package would copy all of its 24 MB. One file is enough: the script that draws formulas as
SVG. It contains its glyphs, so it also works from ``file://``.
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
        ExtensionError: the package is not installed.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ExtensionError(f"{PACKAGE} is not installed. Run: pip install 'hf-posenc[docs]'")
    return Path(spec.origin).parent / "static" / "mathjax" / SCRIPT
