"""Words plus positions, multiplied out: four terms, of which one knows position and nothing else."""

from __future__ import annotations

from codes import coded, codes
from teaching import Result, Table, lesson
from torch import Tensor

from hf_posenc.insight.properties.layer import gaussian
from hf_posenc.insight.properties.translation import off_diagonals

COUNT = 64
NONE = 1e-6


@lesson("What does (x + p)(x′ + p′)ᵀ consist of?", schemes=("sinusoidal",))
def terms(schemes: tuple[str, ...]) -> Result:
    """Products of random words with codes, each term alone; then the same with other words."""
    tables, conclusions = [], []
    for scheme in schemes:
        code = codes(coded(scheme), COUNT)
        words, others = (float(code.norm(dim=-1).mean()) * unit(gaussian(COUNT, code.shape[1], seed=s)) for s in (1, 2))
        first, second = four(words, code), four(others, code)
        rows = [
            (name, float(term.std()), float((second[name] - term).abs().max() / term.std()),
             off_diagonals(term[None]) / float(term.std()))
            for name, term in first.items()
        ]  # fmt: skip
        tables.append(Table(("term", "standard deviation", "change with other words", "spread along a diagonal"),
                            tuple(rows), scheme))  # fmt: skip
        conclusions.append(conclusion_of(scheme, rows))
    shows = f"""{COUNT} random words as long as the codes are added to codes of {COUNT} positions, and all pairs
        multiplied. The product has four terms. The last but one column is how far a term moves when the words are
        others, the last how far pairs at one distance differ, both in standard deviations of the term."""
    return shows, tables, " ".join(conclusions)


def four(words: Tensor, code: Tensor) -> dict[str, Tensor]:
    """The terms of all pairs, each ``[n, n]``."""
    return {"x x′": words @ words.T, "x p′": words @ code.T, "p x′": code @ words.T, "p p′": code @ code.T}


def unit(x: Tensor) -> Tensor:
    """Rows of length 1."""
    return x / x.norm(dim=-1, keepdim=True)


def conclusion_of(scheme: str, rows: list[tuple[str, float, float, float]]) -> str:
    """Sentence on the numbers of one scheme."""
    free = [name for name, _, change, _ in rows if change < NONE]
    even = [name for name, _, _, spread in rows if spread < NONE]
    shares = {name: deviation**2 for name, deviation, *_ in rows}
    mixed = sum(shares[name] for name in shares if name not in (*free, "x x′")) / sum(shares.values())
    return (
        f"{scheme}: free of words is {' and '.join(free) or 'no term'}, a function of distance "
        f"{' and '.join(even) or 'no term'}; {100 * mixed:.0f} % of the variance is words times positions of other "
        "words, which nobody asked for."
    )


if __name__ == "__main__":
    terms.main()
