"""What does (x + p)(x′ + p′)ᵀ consist of?

Codes of 64 positions are added to random words, and all pairs of sums are multiplied, which gives four terms. Only p p′
does not depend on the words; it is a function of the distance. The two mixed terms multiply a word with the position of
another word, which has no useful meaning.
"""

from lesson import codes, schemes, show
from properties.layer import gaussian
from properties.translation import off_diagonals
from torch import Tensor


def four(words: Tensor, code: Tensor) -> dict[str, Tensor]:
    """The four terms of all pairs, each ``[n, n]``."""
    return {"x x′": words @ words.T, "x p′": words @ code.T, "p x′": code @ words.T, "p p′": code @ code.T}


for scheme in schemes("sinusoidal"):
    code, rows = codes(scheme, 64), {}
    words = [gaussian(*code.shape, seed=seed) for seed in (1, 2)]
    first, second = (four(code.norm(dim=-1).mean() * x / x.norm(dim=-1, keepdim=True), code) for x in words)
    for name, term in first.items():
        size = float(term.std())
        rows[name] = size, float((second[name] - term).abs().max()) / size, off_diagonals(term[None]) / size
    columns = scheme, "standard deviation", "change with other words", "spread along a diagonal"
    show(columns, [(name, *values) for name, values in rows.items()])
    assert [name for name, (_, change, _) in rows.items() if change < 1e-6] == ["p p′"]
    assert scheme != "sinusoidal" or rows["p p′"][2] < 1e-5 < min(rows[name][2] for name in ("x x′", "x p′", "p x′"))
