"""Every scheme has its formula in LaTeX, which says what the formula of its docstring says."""

from __future__ import annotations

import re
from itertools import groupby

import pytest

from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.registry import list_schemes

RECORDS = [record for record in list_schemes() if record.target.startswith("hf_posenc.")]
ENVIRONMENTS = re.compile(r"\\(begin|end)\{(\w+)\}")
GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "ζ": "zeta", "θ": "theta",
    "λ": "lambda", "ρ": "rho", "σ": "sigma", "τ": "tau", "ψ": "psi", "ω": "omega", "Δ": "Delta",
}  # fmt: skip


def blocks(text: str) -> list[str]:
    """The indented parts of a docstring: its formulas."""
    parts = [part for part in text.split("\n\n") if part.strip()]
    grouped = groupby(parts, key=lambda part: part.startswith("    "))
    return ["\n\n".join(inside) for indented, inside in grouped if indented]


def greek_in_text(text: str) -> set[str]:
    return {GREEK[letter] for letter in GREEK if letter in text}


def greek_in_latex(text: str) -> set[str]:
    return set(re.findall(r"\\([A-Za-z]+)", text)) & set(GREEK.values())


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
def test_latex_says_what_the_docstring_says(record: SchemeRecord) -> None:
    written = blocks(record.text)
    found = record.formula.split("\n\n")
    assert len(found) == len(written)
    assert not any(map(unbalanced, found))
    assert greek_in_latex(record.formula) <= greek_in_text("".join(written))
    for option in re.findall(r"\\mathtt\{([^}]+)\}", record.formula):
        name = option.replace(r"\_", "_").partition("=")[0]
        assert name in record.options or name in record.text
