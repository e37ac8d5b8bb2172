"""Pages, docstrings and help use the field's terms; sentences of pages have at most 25 words (CONTRIBUTING.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILT = (DOCS / ".gitignore").read_text(encoding="utf-8").split()
FILES = (*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("[!_sz]*/*.md"))
PAGES = [path for path in FILES if path.name not in BUILT]
SOURCES = [path for folder in ("hf_posenc", "patches", "eval") for path in (ROOT / folder).rglob("*.py")]
PROMPTS = "passkey.py"  # whose words stored results depend on
LONGEST = 25
RETIRED = {
    r"\b(nats|bits|bytes|tokens|[KMG]iB) a (batch|group|layer|parameter|query|row|second|step|text|token)\b": "per",
    r"\bbehind (a|the|its) ((KV|static) )?(cache|cached)\b": "with a KV cache, after",
    r"(?i)\bkey-value cache\b": "KV cache",
    r"(?i)\bpass keys?\b": "passkey",
    r"(?i)\bside-cars?\b": "PEFT sidecar",
    r"(?i)\bsurely\b": "significantly",
    r"\b(after|behind|with) ever (longer|more)\b": "longer and longer",
    r"(?i)\b(memoryless|secants?|who sees whom|as it comes)\b": "the word of docs/glossary.md",
}
IGNORED = re.compile(r"^( *)```.*?^\1```|\$\$.*?\$\$|<[^<>]*>|\]\([^)]*\)|`[^`\n]*`", re.MULTILINE | re.DOTALL)
UNITS = re.compile(r"\n\s*\n|\n\s*(?=[-*>] |\d+\. |#)|\|")  # paragraphs, items, cells
ENDS = re.compile(r"(?<=[.!?:;])\s+")


def long_sentences(text: str) -> list[str]:
    """Sentences of a page with more words than `LONGEST`; code, formulas and addresses do not count."""
    sentences = [part for unit in UNITS.split(IGNORED.sub(" ", text)) for part in ENDS.split(unit)]
    return [" ".join(part.split()) for part in sentences if len(re.findall(r"[^\W\d_][\w’'-]*", part)) > LONGEST]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_of_pages_are_short(page: Path) -> None:
    assert not long_sentences(page.read_text(encoding="utf-8"))


def test_retired_words_do_not_come_back() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (*PAGES, *SOURCES) if path.name != PROMPTS}
    assert len(PAGES) > 40
    assert len(SOURCES) > 300
    found = [
        f"{path.relative_to(ROOT)}: {match.group()!r}: write {term}"
        for pattern, term in RETIRED.items()
        for path, text in texts.items()
        for match in re.finditer(pattern, text)
    ]
    assert not found, "\n".join(found)


def test_a_long_sentence_and_a_retired_word_are_noticed() -> None:
    """Controls: an empty search would pass."""
    assert not long_sentences("word " * LONGEST + f"`{'code ' * 9}`. Another one.")
    assert long_sentences("A first one. " + "word " * (LONGEST + 1))
    assert any(re.search(pattern, "16 bytes a token") for pattern in RETIRED)
