"""Convert docstrings to Markdown: formulas are typeset, arXiv numbers become links, all other text stays plain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
SPECIAL = re.compile(r"([\\*_\[\]<>#$|{}~])")
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def page(text: str, latex: str = "") -> str:
    """Convert a docstring to Markdown; indented parts become the formulas in ``latex``, or else blocks of code."""
    return "\n\n".join(blocks(text, latex)) + "\n"


def blocks(text: str, latex: str = "") -> Iterator[str]:
    """Yield paragraphs and formulas in their order."""
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
    """Split a text at blank lines and at changes of indentation."""
    groups: list[list[str]] = [[]]
    for line in text.split("\n"):
        current = groups[-1]
        if not line.strip() or (current and line.startswith("    ") and not current[-1].startswith(" ")):
            groups.append([])
        if line.strip():
            groups[-1].append(line)
    return ["\n".join(lines) for lines in groups if lines]


def prose(text: str) -> str:
    """Escape a text so that only code and arXiv links are markup."""
    return "".join(part if CODE.fullmatch(part) else linked(part) for part in CODE.split(text))


def linked(text: str) -> str:
    """Escape a text, and link its arXiv numbers."""
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", SPECIAL.sub(r"\\\1", text))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("\n", " ") for cell in line) + " |" for line in lines) + "\n"


def code(text: str) -> str:
    """Format the cell of a table as code; an empty text stays empty."""
    return "`" + text.replace("|", "\\|") + "`" if text else ""
