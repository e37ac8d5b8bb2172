"""Adding a code to a word is concatenating the two, with less to choose from."""

from __future__ import annotations

import torch
from codes import coded, codes
from teaching import Result, Table, lesson
from tiny_models import apart
from torch import Tensor

from hf_posenc.insight.properties.layer import gaussian

POSITIONS, WORDS, OUT = 64, 2000, 32


@lesson("Add a code to the embedding, or concatenate it?", schemes=("sinusoidal",))
def concat(schemes: tuple[str, ...]) -> Result:
    """Projections of the sum and of the concatenation, and the share of each part that a linear map recovers."""
    tables, conclusions = [], []
    for scheme in schemes:
        code = codes(coded(scheme), POSITIONS)[torch.arange(WORDS) % POSITIONS]
        width = code.shape[1]
        word = gaussian(WORDS, width, seed=1)
        weight = gaussian(width, OUT, seed=2)
        both = torch.cat((word, code), dim=1)
        same = apart((word + code) @ weight, both @ torch.cat((weight, weight)))
        rows = [
            ("added", width, width * OUT, *read_back(word + code, code, word)),
            ("side by side", 2 * width, 2 * width * OUT, *read_back(both, code, word)),
        ]
        columns = ("word and code", "channels", f"weights to {OUT} channels", "code read back", "word read back")
        tables.append(Table(columns, tuple(rows), scheme))
        conclusions.append(
            f"{scheme}: [x; p] under the same weights twice is x + p to {same:.0e}, so that adding is a special case "
            f"at half the width and {rows[1][2] / rows[0][2]:.0f} times fewer weights. From the sum a matrix reads "
            f"back {100 * rows[0][3]:.0f} % of the code and {100 * rows[0][4]:.0f} % of the word, side by side "
            f"{100 * rows[1][3]:.0f} and {100 * rows[1][4]:.0f} %."
        )
    shows = f"""{WORDS} random words at {POSITIONS} positions. With weights W = [V; U] a projection of word and code
        side by side is x V + p U; of their sum it is x V + p V. The last columns are the share of the variance of codes
        and of words that the best matrix reads back."""
    return shows, tables, " ".join(conclusions)


def read_back(seen: Tensor, code: Tensor, word: Tensor) -> tuple[float, float]:
    """Shares of the variance of codes and words that a linear map of ``seen`` explains, on held-out rows."""
    half = len(seen) // 2
    shares = []
    for wanted in (code, word):
        mean = wanted[:half].mean(0)
        found = torch.linalg.lstsq(seen[:half] - seen[:half].mean(0), wanted[:half] - mean, driver="gelsd").solution
        missed = (seen[half:] - seen[:half].mean(0)) @ found - (wanted[half:] - mean)
        shares.append(max(0.0, 1 - float(missed.square().sum() / (wanted[half:] - mean).square().sum())))
    return shares[0], shares[1]


if __name__ == "__main__":
    concat.main()
