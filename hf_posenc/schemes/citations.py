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
    """BibTeX of the papers that schemes come from, each once; without names, of this package.

    >>> print(cite("yarn"))  # doctest: +ELLIPSIS
    @inproceedings{peng2024yarn,
    ...
    }

    Args:
        names: names or aliases of schemes; compositions (``"yarn+logn"``) stand for their parts.

    Raises:
        UnknownScheme: nothing is registered under one of them.
    """
    records = [scheme_record(part.strip()) for name in names for part in name.split("+")]
    known, package = entries_by_paper(), entries()[PACKAGE]
    remarks = [why_the_package(record) for record in records if record.paper not in known]
    found = [known.get(record.paper, package) for record in records] or [package]
    return "\n\n".join(dict.fromkeys([*remarks, *found]))


def why_the_package(record: SchemeRecord) -> str:
    """A comment on a scheme whose paper has no entry here."""
    reason = f"there is no entry for its paper {record.paper}" if record.paper else "it has no paper"
    return f"% {record.name}: {reason}; cited is the package."


@lru_cache(maxsize=1)
def entries() -> dict[str, str]:
    """All entries of the file, by their keys."""
    return {found[1]: found[0] for found in ENTRY.finditer(REFERENCES.read_text(encoding="utf-8"))}


@lru_cache(maxsize=1)
def entries_by_paper() -> dict[str, str]:
    """All entries that have one, by their arXiv number or address."""
    return {paper: entry for entry in entries().values() for paper in PAPER.findall(entry)}
