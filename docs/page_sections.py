"""Read a page of Markdown section by section, as `chinese_in_step` compares it: its blocks, code, links and numbers."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

NUMBER = re.compile(r"\d[\d,.]*(?<![,.])")
FORMULA = re.compile(r"^\$\$\n(.*?)^\$\$$|(?<![\\$])\$([^$\n]+)\$", re.MULTILINE | re.DOTALL)
WORDS = re.compile(r"\\text\{[^}]*\}")  # in a formula, which a translation has in Chinese
PARSER = MarkdownIt("commonmark").enable("table")


@dataclass
class Section:
    """What a section has that its translation must have.

    Attributes:
        heading: its text.
        level: of the heading.
        line: of the heading, counted from 1.
        blocks: paragraphs, list items, rows and code, in their order.
        code: the text of each block of code.
        counted: the rest, by kind.
        texts: all of its text but what a program writes between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``.
    """

    heading: str
    level: int
    line: int
    blocks: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    counted: dict[str, Counter[str]] = field(
        default_factory=lambda: {kind: Counter() for kind in ("words in code", "pictures", "links", "numbers")}
    )

    @property
    def digest(self) -> str:
        """A short hash of the text, however its lines are broken."""
        return sha256(" ".join(" ".join(self.texts).split()).encode()).hexdigest()[:12]


def sections(root: Path, page: Path, other: Path, translations: dict[Path, Path]) -> list[Section]:
    """The sections of a page.

    Args:
        root: of the repository; all other paths are relative to it.
        page: the page.
        other: the same page in the other language; links to it are not counted.
        translations: pages that are linked in place of others.
    """
    found = [Section("", 0, 1)]
    tokens = PARSER.parse(FORMULA.sub(as_code, (root / page).read_text(encoding="utf-8")))
    generated = False
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and token.map and following:
            found.append(Section(following.content, int(token.tag[1:]), token.map[0] + 1))
        elif token.type == "fence" and token.info != "{toctree}":
            found[-1].blocks.append(token.info or "code")
            found[-1].code.append(token.content)
            found[-1].texts.append(token.content)
        elif token.type in ("paragraph_open", "tr_open", "list_item_open") and not token.hidden:
            found[-1].blocks.append(token.type.removesuffix("_open"))
        elif token.type == "html_block":
            generated = token.content.rstrip().endswith(": begin -->")
        elif token.type == "inline":
            found[-1].texts += [] if generated else [token.content]
            count(found[-1].counted, token.children or [], page, translations)
    for section in found:
        del section.counted["links"][other.as_posix()]
    return found


def as_code(formula: re.Match[str]) -> str:
    """A formula as Markdown's code, in as many lines: a block or a word."""
    block, word = formula.groups()
    return f"```math\n{WORDS.sub('', block)}```" if block else f"`{word}`"


def count(counted: dict[str, Counter[str]], tokens: list[Token], page: Path, translations: dict[Path, Path]) -> None:
    """Count what stands inside a paragraph, a heading, or a cell; a number once a section."""
    for token in tokens:
        if token.type == "code_inline":
            counted["words in code"][token.content] += 1
        elif token.type == "link_open":
            counted["links"][target(str(token.attrs["href"]), page, translations)] += 1
        elif token.type == "image":
            counted["pictures"][target(str(token.attrs["src"]), page, translations)] += 1
        elif token.type == "text":
            counted["numbers"] |= Counter(set(NUMBER.findall(token.content)))


def target(link: str, page: Path, translations: dict[Path, Path]) -> str:
    """Where a link leads: a path in the repository, of the translation where there is one, or an address."""
    address = urlsplit(link)
    if address.scheme or not address.path:
        return link
    path = Path(os.path.normpath(page.parent / address.path))
    path = translations.get(path, path)
    return f"{path.as_posix()}#{address.fragment}" if address.fragment else path.as_posix()
