"""Say which Chinese pages are not in step with their English originals: ``python docs/chinese_in_step.py``.

Compared, section by section, is what a translation keeps: levels of headings, the sequence of paragraphs, list items,
table rows and code, code and formulas to the letter, code in sentences, pictures, where links lead, and numbers. A
table of contents (``{toctree}``) and the link between a page and its translation are left out.

What sentences say cannot be compared. Instead, a hash of each English section as it was translated is kept, and a
section that was changed later is named. Read it in both languages, correct the translation, and run with ``--accept``.

Exit code 1 where something is not in step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from page_sections import Section, sections

ROOT = Path(__file__).parents[1]
ENGLISH = Path("docs")
CHINESE = Path("docs/zh")
TRANSLATED = CHINESE / "translated.json"
README = {CHINESE / "README.md": Path("README.md")}  # the page that is not at the same place


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
    known = json.loads((root / TRANSLATED).read_text(encoding="utf-8")).get(english.as_posix())
    if known is None:
        yield f"{chinese}: is new. When it is translated, run: python docs/chinese_in_step.py --accept"
        known = {one.heading: one.digest for one in theirs}
    for original, translation in zip(theirs, ours, strict=True):
        place = f"{chinese}:{translation.line} ({english}:{original.line}, {original.heading!r})"
        yield from (f"{place}: {what}" for what in section_differences(original, translation))
        if known.get(original.heading) != original.digest:
            yield f"{place}: the original has changed. Read both; then: python docs/chinese_in_step.py --accept"


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


def digests(root: Path) -> dict[str, dict[str, str]]:
    """Hashes of the sections of every translated page, by page and heading, as they are now."""
    return {
        english.as_posix(): {one.heading: one.digest for one in sections(root, english, english, {})}
        for english in map(english_page, chinese_pages(root))
    }


def accept(root: Path) -> None:
    """Note that every translation is that of the present text."""
    text = json.dumps(digests(root), indent=1, ensure_ascii=False)
    (root / TRANSLATED).write_text(text + "\n", encoding="utf-8")


def main(words: list[str], root: Path = ROOT) -> int:
    """Write every difference to stdout, and return the exit code."""
    if words == ["--accept"]:
        accept(root)
    found = [line for page in chinese_pages(root) for line in differences(root, page)]
    sys.stdout.write(("\n".join(found) or f"{len(chinese_pages(root))} Chinese pages are in step.") + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
