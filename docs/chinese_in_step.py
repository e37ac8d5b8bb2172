"""Say which Chinese pages are not in step with their English originals: ``python docs/chinese_in_step.py``.

Compared, section by section, is what a translation keeps: levels of headings, the sequence of paragraphs, list items,
table rows and code, code to the letter, code in sentences, pictures, where links lead, and numbers. A table of contents
(``{toctree}``) and the link between a page and its translation are left out. Exit code 1 where something differs.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
ENGLISH = Path("docs")
CHINESE = Path("docs/zh")
README = {CHINESE / "README.md": Path("README.md")}  # the page that is not at the same place
NUMBER = re.compile(r"\d[\d,.]*(?<![,.])")
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
    """

    heading: str
    level: int
    line: int
    blocks: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    counted: dict[str, Counter[str]] = field(
        default_factory=lambda: {kind: Counter() for kind in ("words in code", "pictures", "links", "numbers")}
    )


def english_page(chinese: Path) -> Path:
    """The original of a page; both relative to the repository."""
    return README.get(chinese, ENGLISH / chinese.relative_to(CHINESE))


def chinese_pages(root: Path) -> list[Path]:
    """All Chinese pages, relative to the repository."""
    return sorted(file.relative_to(root) for file in (root / CHINESE).rglob("*.md"))


def differences(root: Path, chinese: Path) -> Iterator[str]:
    """What is not in step on one page: one line each, with place and both sides."""
    english = english_page(chinese)
    if not (root / english).exists():
        yield f"{chinese}: its original {english} does not exist. Remove or move the translation."
        return
    translations = {english_page(page): page for page in chinese_pages(root)}
    theirs, ours = sections(root, english, chinese, translations), sections(root, chinese, english, {})
    if [one.level for one in ours] != [one.level for one in theirs]:
        yield f"{chinese}: headings are {outline(ours)}; in {english} {outline(theirs)}"
        return
    for original, translation in zip(theirs, ours, strict=True):
        place = f"{chinese}:{translation.line} ({english}:{original.line}, {original.heading!r})"
        yield from (f"{place}: {what}" for what in section_differences(original, translation))


def outline(sections: list[Section]) -> str:
    """Headings with their levels; the first section, which has none, is left out."""
    return ", ".join(f"{'#' * one.level} {one.heading}" for one in sections if one.level)


def section_differences(original: Section, translation: Section) -> Iterator[str]:
    """What differs in one section."""
    if original.blocks != translation.blocks:
        yield f"blocks are {', '.join(translation.blocks)}; in the original {', '.join(original.blocks)}"
    for number, (theirs, ours) in enumerate(zip(original.code, translation.code, strict=False), start=1):
        if theirs != ours:
            yield f"code block {number} differs from the original"
    for kind, theirs in original.counted.items():
        ours = translation.counted[kind]
        if missing := sorted((theirs - ours).elements()):
            yield f"{kind} missing: {', '.join(missing)}"
        if added := sorted((ours - theirs).elements()):
            yield f"{kind} added: {', '.join(added)}"


def sections(root: Path, page: Path, other: Path, translations: dict[Path, Path]) -> list[Section]:
    """The sections of a page.

    Args:
        root: of the repository; all other paths are relative to it.
        page: the page.
        other: the same page in the other language; links to it are not counted.
        translations: pages that are linked in place of others.
    """
    found = [Section("", 0, 1)]
    tokens = PARSER.parse((root / page).read_text(encoding="utf-8"))
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and token.map and following:
            found.append(Section(following.content, int(token.tag[1:]), token.map[0] + 1))
        elif token.type == "fence" and token.info != "{toctree}":
            found[-1].blocks.append(token.info or "code")
            found[-1].code.append(token.content)
        elif token.type in ("paragraph_open", "tr_open", "list_item_open") and not token.hidden:
            found[-1].blocks.append(token.type.removesuffix("_open"))
        elif token.type == "inline":
            count(found[-1].counted, token.children or [], page, translations)
    for section in found:
        del section.counted["links"][other.as_posix()]
    return found


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


def main(root: Path = ROOT) -> int:
    """Write every difference to stdout, and return the exit code."""
    found = [line for page in chinese_pages(root) for line in differences(root, page)]
    sys.stdout.write(("\n".join(found) or f"{len(chinese_pages(root))} Chinese pages are in step.") + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
