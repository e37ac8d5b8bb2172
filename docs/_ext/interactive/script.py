"""Join the page's JavaScript modules into scripts without imports, so that one file works offline and from disk."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "js"
FORMULAS = "formulas"
IMPORT = re.compile(r'^import \{[^}]*\} from "(\.[^"]*)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=const |function )", re.MULTILINE)


def formulas() -> str:
    """All formulas as one script; its functions are global, because the other script of the page calls them."""
    return joined([FOLDER / FORMULAS / name for name in ("schemes.js", "tables.js")])


def views() -> str:
    """All code that draws the formulas, as one script."""
    return joined([FOLDER / "main.js"], outside=FOLDER / FORMULAS)


def joined(starts: list[Path], outside: Path | None = None) -> str:
    """Concatenate modules and their imports, each module once and after its own imports.

    Args:
        starts: the modules to begin with.
        outside: a folder whose modules are left out.
    """
    order: dict[Path, str] = {}

    def add(file: Path) -> None:
        if file in order or file.parent == outside:
            return
        text = file.read_text(encoding="utf-8")
        for name in IMPORT.findall(text):
            add((file.parent / name).resolve())
        order[file] = EXPORT.sub("", IMPORT.sub("", text))

    for file in starts:
        add(file.resolve())
    return "\n".join(f"// {file.relative_to(FOLDER.resolve()).as_posix()}\n{text}" for file, text in order.items())
