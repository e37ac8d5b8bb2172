"""BibTeX of schemes: the entries of `schemes/references.bib`, found by the ``paper`` of a scheme's record."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.registry import scheme_record

REFERENCES = Path(__file__).parent / "references.bib"
PACKAGE = "hf_posenc"  # key of this package's own entry
ENTRY = re.compile(r"^@\w+\{([\w-]+),\n.*?^\}$", re.MULTILINE | re.DOTALL)
PAPER = re.compile(r"^  (?:eprint|url) = \{(.*)\},$", re.MULTILINE)


def cite(*names: str) -> str:
    """BibTeX of the papers of some schemes, each once; without names, the entry of this package.

    This package is cited for its own schemes without a paper. Those of others get a comment instead.

    >>> print(cite("yarn"))  # doctest: +ELLIPSIS
    @inproceedings{peng2024yarn,
    ...
    }

    Args:
        names: names or aliases of schemes; compositions (``"yarn+logn"``) stand for their parts.

    Raises:
        UnknownScheme: a name is not registered.
    """
    records = [scheme_record(part.strip()) for name in names for part in name.split("+")]
    by_paper, package = entries_by_paper(), entries()[PACKAGE]
    comments = [comment_without_entry(record) for record in records if record.paper not in by_paper]
    cited = [by_paper.get(record.paper, package) for record in records if record.shipped or record.paper in by_paper]
    return "\n\n".join(dict.fromkeys([*comments, *cited])) or package


def comment_without_entry(record: SchemeRecord) -> str:
    """BibTeX comment for a scheme whose paper has no entry here."""
    reason = f"there is no entry for its paper {record.paper}" if record.paper else "it has no paper"
    instead = "cited is the package" if record.shipped else "its own package states no citation"
    return f"% {record.name}: {reason}; {instead}."


@lru_cache(maxsize=1)
def entries() -> dict[str, str]:
    """All entries of the file, by key."""
    return {match[1]: match[0] for match in ENTRY.finditer(REFERENCES.read_text(encoding="utf-8"))}


@lru_cache(maxsize=1)
def entries_by_paper() -> dict[str, str]:
    """Entries by the arXiv number or address of their paper; entries without one are left out."""
    return {paper: entry for entry in entries().values() for paper in PAPER.findall(entry)}
