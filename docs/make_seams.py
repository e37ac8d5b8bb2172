"""Write docs/seams.md, which is not committed: each name of another package that this one reaches into, by its source.

Run `python docs/make_seams.py`; building the site runs it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from seam_names import Name, Use, seams

from hf_posenc.core.lazy import HOSTS

PAGE = Path(__file__).parent / "seams.md"
SHOWN = 3  # files that are listed per name
HEAD = """# Names of other packages

The source of hf-posenc uses these names of {versions}.
A *public* name is exported at the top of its package, without an underscore. The keywords of its calls follow it. A
method that a class here overrides is listed as well. If a name is gone, its first use raises `HostChanged`, which
names the versions to install.
"""


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.connect("builder-inited", lambda app: write_page())
    return {"version": "1", "parallel_read_safe": True}


def write_page() -> None:
    """Write the page, unless it is current."""
    text = page(seams())
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        PAGE.write_text(text, encoding="utf-8")


def page(found: Mapping[Name, Use]) -> str:
    """The page in Markdown, with one table per package."""
    text = HEAD.format(versions=", ".join(f"{host} {version(host)}" for host in HOSTS.values()))
    for package, host in HOSTS.items():
        text += f"\n## {host}\n\n| name | module | | used by |\n|---|---|---|---|\n"
        for module, name in sorted(one for one in found if one[0].partition(".")[0] == package):
            use = found[module, name]
            keywords = f"({', '.join(f'{one}=' for one in sorted(use.keywords))})" if use.keywords else ""
            more = f" and {len(use.files) - SHOWN} more" if len(use.files) > SHOWN else ""
            where = ", ".join(f"`{file}`" for file in sorted(use.files)[:SHOWN])
            public = "public" if is_public((module, name)) else "private"
            text += f"| `{name}{keywords}` | `{module}` | {public} | {where}{more} |\n"
    return text


def is_public(name: Name) -> bool:
    """Whether a package exports a name at its top level, and no part of the name starts with a single underscore."""
    package, parts = import_module(name[0].partition(".")[0]), name[1].split(".")
    private = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return hasattr(package, parts[0]) and not private


if __name__ == "__main__":
    write_page()
