"""Add a code to the embedding, or concatenate it?

With weights W = [V; U] a projection of word and code side by side is x V + p U; of their sum it is x V + p V. Adding is
the special case U = V at half the width. From the sum a matrix reads back only part of the code and of the word.
"""

import torch
from lesson import apart, codes, schemes, show
from properties.layer import gaussian
from torch import Tensor

POSITIONS, WORDS, OUT = 64, 2000, 32


def read_back(seen: Tensor, wanted: Tensor) -> float:
    """Share of the variance of ``wanted`` that a linear map of ``seen`` explains, on held-out rows."""
    half = len(seen) // 2
    seen, wanted = seen - seen[:half].mean(0), wanted - wanted[:half].mean(0)
    matrix = torch.linalg.lstsq(seen[:half], wanted[:half], driver="gelsd").solution
    return 1 - float((seen[half:] @ matrix - wanted[half:]).square().sum() / wanted[half:].square().sum())


for scheme in schemes("sinusoidal"):
    code = codes(scheme, POSITIONS)[torch.arange(WORDS) % POSITIONS]
    word, weight = gaussian(*code.shape, seed=1), gaussian(code.shape[1], OUT, seed=2)
    both = torch.cat((word, code), dim=1)
    rows = [
        (name, seen.shape[1] * OUT, read_back(seen, code), read_back(seen, word))
        for name, seen in (("added", word + code), ("side by side", both))
    ]
    show((scheme, f"weights to {OUT} channels", "code read back", "word read back"), rows)
    assert apart((word + code) @ weight, both @ torch.cat((weight, weight))) < 1e-9
    assert rows[0][2] < 0.95 < rows[1][2]
