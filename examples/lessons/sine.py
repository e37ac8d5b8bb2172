"""Why sine and cosine, when the sine alone is unique as well?

As sin a · sin b = ½ (cos(a − b) − cos(a + b)), products of codes with sines alone depend on the positions, not only on
the distance. With sine and cosine, the product is the same for all pairs at distance five, and a step is a linear map.
"""

import torch
from lesson import show
from properties import targets
from properties.translation import fit, pairs

PAIRS = ((0, 5), (100, 105), (1000, 1005))
rows = {}
for kind, name in (("sincos", "sine and cosine"), ("sin", "sine alone"), ("cos", "cosine alone")):
    target = targets("sinusoidal", {"kind": kind})[0]
    code = target.codes(torch.arange(1006))
    step = fit(*pairs(target))
    rows[name] = *(float(code[i] @ code[j]) for i, j in PAIRS), step.residual
columns = "code", *(f"⟨{i}, {j}⟩" for i, j in PAIRS), "a step of five, unexplained by a linear map"
show(columns, [(name, *values) for name, values in rows.items()])
frequencies = 10_000.0 ** (-2 * torch.arange(64).double() / 128)
for (i, j), product in zip(PAIRS, rows["sine alone"], strict=False):
    assert abs(float(((frequencies * (i - j)).cos() - (frequencies * (i + j)).cos()).sum() / 2) - product) < 1e-3
assert max(rows["sine and cosine"][:3]) - min(rows["sine and cosine"][:3]) < 1e-3
assert rows["sine and cosine"][3] < 1e-3 < rows["sine alone"][3]
