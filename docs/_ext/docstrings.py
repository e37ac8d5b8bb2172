"""Docstrings as Markdown: formulas are typeset, arXiv numbers become links, nothing else turns into markup."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
SPECIAL = re.compile(r"([\\*_\[\]<>#$|{}~])")
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def page(text: str, latex: str = "") -> str:
    """A docstring as Markdown; indented parts become formulas in LaTeX, or blocks of code where there is none."""
    return "\n\n".join(blocks(text, latex)) + "\n"


def blocks(text: str, latex: str = "") -> Iterator[str]:
    """Paragraphs and formulas, one after the other."""
    formulas = iter(latex.split("\n\n") if latex else ())
    for indented, lines in groupby(paragraphs(text), key=lambda paragraph: paragraph.startswith("    ")):
        if not indented:
            yield from map(prose, lines)
        elif formula := next(formulas, None):
            yield f"```{{math}}\n{formula}\n```"
        else:
            body = "\n\n".join(lines)
            yield "```text\n" + "\n".join(line[4:] for line in body.split("\n")) + "\n```"


def paragraphs(text: str) -> list[str]:
    """Split at blank lines and at changes of indentation."""
    found: list[list[str]] = [[]]
    for line in text.split("\n"):
        inside = found[-1]
        if not line.strip() or (inside and line.startswith("    ") and not inside[-1].startswith(" ")):
            found.append([])
        if line.strip():
            found[-1].append(line)
    return ["\n".join(lines) for lines in found if lines]


def prose(text: str) -> str:
    """A text in which only code and links are markup."""
    return "".join(part if CODE.fullmatch(part) else linked(part) for part in CODE.split(text))


def linked(text: str) -> str:
    """Escaped text, with links to arXiv."""
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", SPECIAL.sub(r"\\\1", text))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("\n", " ") for cell in line) + " |" for line in lines) + "\n"


def code(text: str) -> str:
    """A cell of code."""
    return "`" + text.replace("|", "\\|") + "`" if text else ""
