"""Add a code to the embedding, or concatenate it?

A projection with weights W = [V; U] of word and code side by side is x V + p U; a projection of their sum is x V + p V.
Adding is the special case U = V at half the width. From the sum, a matrix reads back only a part of code and word.
"""

import torch
from lesson import apart, codes, schemes, show
from properties.layer import gaussian
from torch import Tensor

POSITIONS, WORDS, OUT = 64, 2000, 32


def read_back(inputs: Tensor, targets: Tensor) -> float:
    """Share of the variance of ``targets`` that a linear map of ``inputs`` explains, on held-out rows."""
    half = len(inputs) // 2
    inputs, targets = inputs - inputs[:half].mean(0), targets - targets[:half].mean(0)
    matrix = torch.linalg.lstsq(inputs[:half], targets[:half], driver="gelsd").solution
    return 1 - float((inputs[half:] @ matrix - targets[half:]).square().sum() / targets[half:].square().sum())


for scheme in schemes("sinusoidal"):
    code = codes(scheme, POSITIONS)[torch.arange(WORDS) % POSITIONS]
    word, weight = gaussian(*code.shape, seed=1), gaussian(code.shape[1], OUT, seed=2)
    both = torch.cat((word, code), dim=1)
    rows = [
        (name, inputs.shape[1] * OUT, read_back(inputs, code), read_back(inputs, word))
        for name, inputs in (("added", word + code), ("side by side", both))
    ]
    show((scheme, f"weights to {OUT} channels", "code read back", "word read back"), rows)
    assert apart((word + code) @ weight, both @ torch.cat((weight, weight))) < 1e-9
    assert rows[0][2] < 0.95 < rows[1][2]
