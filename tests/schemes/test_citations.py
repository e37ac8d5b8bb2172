"""Every scheme's entry is of the paper that its docstring names, and its LaTeX has the docstring's formulas."""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby

import pytest

from hf_posenc import cite
from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.citations import PACKAGE, REFERENCES, entries, entries_by_paper
from hf_posenc.schemes.registry import list_schemes

RECORDS = [record for record in list_schemes() if record.target.startswith("hf_posenc.")]
PAPERS = [record for record in RECORDS if record.paper]


def field(entry: str, name: str) -> str:
    """A field of an entry on one line; independent of the code under test."""
    found = re.search(rf"\b{name} = \{{(.*?)\}},\n", entry, re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def plain(text: str) -> str:
    """Lower case letters and digits alone, without accents and the commands that make them."""
    folded = unicodedata.normalize("NFKD", re.sub(r"\\[uvc]\{", "", text))
    return re.sub(r"[^a-z0-9]", "", folded.lower())


def named_by_docstring(record: SchemeRecord, entry: str) -> bool:
    """Whether the docstring names the first author, and whether titles that it quotes before the number agree."""
    first = field(entry, "author").partition(" and ")[0].partition(",")[0]
    quoted = re.findall(rf'"([^"]+)",\s+arXiv:{re.escape(record.paper)}', record.text)
    titles = all(plain(title) in plain(field(entry, "title")) for title in quoted)
    return plain(first) in plain(record.text) and titles


@pytest.mark.parametrize("record", PAPERS, ids=lambda record: record.name)
def test_the_entry_is_of_the_paper_that_the_docstring_names(record: SchemeRecord) -> None:
    entry = cite(record.name)
    assert record.paper in (field(entry, "eprint"), field(entry, "url"))
    assert (field(entry, "archiveprefix") == "arXiv") == bool(field(entry, "eprint"))
    assert re.fullmatch(r"(19|20)\d\d", field(entry, "year"))
    assert named_by_docstring(record, entry)


def test_entries_and_records_name_the_same_papers() -> None:
    assert set(entries_by_paper()) == {record.paper for record in PAPERS}
    assert len(entries_by_paper()) == len(entries()) - 1  # each paper has one entry, and the package has none


def test_the_file_is_bibtex_for_another_reader() -> None:
    pybtex = pytest.importorskip("pybtex.database", reason="reads BibTeX: pip install pybtex")
    read = pybtex.parse_string(REFERENCES.read_text(encoding="utf-8"), "bibtex").entries
    assert set(read) == set(entries())
    for key, entry in read.items():
        assert entry.persons["author"], key
        required = {"inproceedings": "booktitle", "article": "journal"}.get(entry.type, "title")
        assert entry.fields[required], key
        assert len(entry.fields.get("eprint", "0000.00000")) in (9, 10), key


def test_a_scheme_without_a_paper_says_so_and_cites_the_package() -> None:
    text = cite("host")
    assert text.startswith("% host: it has no paper")
    assert f"@software{{{PACKAGE}," in text
    assert cite() == entries()[PACKAGE]


ENVIRONMENTS = re.compile(r"\\(begin|end)\{(\w+)\}")


def blocks(text: str) -> list[str]:
    """The indented parts of a docstring: its formulas."""
    parts = [part for part in text.split("\n\n") if part.strip()]
    grouped = groupby(parts, key=lambda part: part.startswith("    "))
    return ["\n\n".join(inside) for indented, inside in grouped if indented]


def unbalanced(latex: str) -> bool:
    """Whether braces, environments or the delimiters of one size do not close what they open."""
    opened: list[str] = []
    for kind, name in ENVIRONMENTS.findall(latex):
        if kind == "begin":
            opened.append(name)
        elif not opened or opened.pop() != name:
            return True
    plain = re.sub(r"\\[{}]", "", latex)
    sizes = len(re.findall(r"\\left\b", latex)) != len(re.findall(r"\\right\b", latex))
    return bool(opened) or plain.count("{") != plain.count("}") or sizes


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_latex_has_every_formula_of_the_docstring_and_known_options(record: SchemeRecord) -> None:
    written = blocks(record.text)
    found = record.formula.split("\n\n")
    assert len(found) == len(written)
    assert not any(map(unbalanced, found))
    for option in re.findall(r"\\mathtt\{([^}]+)\}", record.formula):
        name = option.replace(r"\_", "_").partition("=")[0]
        assert name in record.options or name in record.text
