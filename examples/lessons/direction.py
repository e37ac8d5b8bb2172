"""Does a product of codes distinguish before from after?

The product of two sinusoidal codes is the same for a later and an earlier position at the same distance. With random
matrices for queries and keys in between, as in attention, before and after differ.
"""

import torch
from lesson import codes, schemes, show
from properties.layer import gaussian

MIDDLE, DISTANCES = 40, (1, 2, 5, 20)
rows = {}
for scheme in schemes("sinusoidal", "integer"):
    code = codes(scheme, 2 * MIDDLE + 1)
    code = code / code.norm(dim=-1).mean()
    width = code.shape[1]
    for name, between in (("bare", torch.eye(width).double()), ("projected", gaussian(width, width) / width)):
        products = code @ between.T @ code[MIDDLE]
        uneven = max(abs(float(products[MIDDLE + k] - products[MIDDLE - k])) for k in DISTANCES)
        rows[scheme, name] = float(products[MIDDLE + 5]), float(products[MIDDLE - 5]), uneven
columns = "scheme", "codes", "5 after", "5 before", "largest difference at 1, 2, 5 and 20"
show(columns, [(*key, *values) for key, values in rows.items()])
assert "sinusoidal" not in dict(rows) or rows["sinusoidal", "bare"][2] < 1e-6 < rows["sinusoidal", "projected"][2]
