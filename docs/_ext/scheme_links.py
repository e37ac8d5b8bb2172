"""Find links between schemes, and from a scheme to the pages that explain it, in docstrings and pages."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from docstrings import table

from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.registry import list_schemes

DOCS = Path(__file__).parents[1]
EXPLAINED_IN = ("derivations", "guide")  # folders of pages that explain
QUOTED = re.compile(r"(?<!`)`([a-z0-9_]+)`(?!`)|``\"([a-z0-9_]+(?:\+[a-z0-9_]+)+)\"``")  # `ntk_parts`, ``"rope+fox"``
TITLED = re.compile(
    r"\b[A-Za-z]*[a-z0-9][A-Z]\w*|\b[A-Z]{2}[A-Z0-9-]*\b|\bT5\b"
)  # YaRN, ALiBi, FIRE: as papers write them
KINDS = {
    "absolute": "codes and tables",
    "attention_scale": "attention scales",
    "bias": "biases of the distance",
    "content": "positions that depend on content",
    "hybrid": "layers without positions",
    "mask": "masks",
    "recipes": "training recipes",
    "remap": "remaps of distances",
    "rotary": "rotations and their scalings",
}
"""Contents of the folders of `hf_posenc.schemes`."""


def links(record: SchemeRecord) -> str:
    """Section with related schemes, schemes of the same kind, and pages that explain the scheme."""
    rows = [
        ("related", scheme_list(related(record))),
        (f"other {KINDS[kind(record)]}" if kind(record) in KINDS else "", scheme_list(same_kind(record))),
        *((f"explained in {folder}", ", ".join(pages_about(record.name, folder))) for folder in EXPLAINED_IN),
    ]
    rows = [row for row in rows if all(row)]
    return f"## Neighbours\n\n{table(('', ''), rows)}" if rows else ""


def scheme_list(names: list[str]) -> str:
    """Links to pages of schemes."""
    return ", ".join(f"[{name}]({name}.md)" for name in names)


def kind(record: SchemeRecord) -> str:
    """Folder of a scheme's module; empty if the module is in none."""
    _, _, path = record.target.partition(":")[0].partition("hf_posenc.schemes.")
    return path.partition(".")[0] if "." in path else ""


def same_kind(record: SchemeRecord) -> list[str]:
    """Other schemes in the folder of a scheme."""
    return [other.name for other in built_in() if kind(other) == kind(record) and other.name != record.name]


def related(record: SchemeRecord) -> list[str]:
    """Schemes that a scheme's docstrings name, or whose docstrings name it."""
    named = named_in(record)
    others = [other for other in built_in() if other.name != record.name]
    return [other.name for other in others if other.name in named or record.name in named_in(other)]


@lru_cache
def named_in_text(text: str) -> frozenset[str]:
    """Schemes that a text names, in backticks or as papers write them."""
    words = {part for one, several in QUOTED.findall(text) for part in (one or several).split("+")}
    words |= {word.lower().replace("-", "_") for word in TITLED.findall(text)}
    return frozenset(known_names()[word] for word in words if word in known_names())


def named_in(record: SchemeRecord) -> frozenset[str]:
    """Schemes that a scheme's docstrings name."""
    return named_in_text(f"{record.text}\n{record.about}")


def pages_about(name: str, folder: str) -> list[str]:
    """Links to the pages of a folder that link to a scheme, in alphabetical order."""
    files = sorted((DOCS / folder).glob("*.md"))
    return [
        f"[](../{folder}/{file.name})" for file in files if f"schemes/{name}.md" in file.read_text(encoding="utf-8")
    ]


@lru_cache(maxsize=1)
def built_in() -> tuple[SchemeRecord, ...]:
    """The schemes of this package."""
    return tuple(record for record in list_schemes() if record.shipped)


@lru_cache(maxsize=1)
def known_names() -> dict[str, str]:
    """Name of the scheme for each name and alias."""
    return {word: record.name for record in built_in() for word in (record.name, *record.aliases)}
