"""Why 10 000, and why in geometric steps?

The product of two codes falls with their distance k. With a small base, codes repeat soon, and two of 1,024 positions
have nearly equal codes. With 10 000 the slowest pair takes some 63,000 positions for a turn, and distant positions can
still be compared. With evenly spaced frequencies, products at large distances vanish. The order of frequencies changes
nothing.
"""

import torch
from lesson import codes, show
from properties.uniqueness import least_distance

DISTANCES = (1, 4, 16, 64, 256)
CHOICES = {
    "base 10": {"base": 10.0}, "base 100": {"base": 100.0}, "base 10 000": {}, "base 1 000 000": {"base": 1e6},
    "10 000, evenly spaced": {"schedule": "linear"}, "10 000, slowest first": {"reverse": True},
}  # fmt: skip
rows = {}
for name, options in CHOICES.items():
    code = codes("sinusoidal", 1024, **options)
    products = [float((code[0] @ code[k]) / (code[0] @ code[0])) for k in DISTANCES]
    rows[name] = *products, least_distance(code)
columns = "frequencies", *(f"k = {k}" for k in DISTANCES), "closest two"
show(columns, [(name, *values) for name, values in rows.items()])
frequencies = 10_000.0 ** (-2 * torch.arange(64).double() / 128)
assert all(abs(rows["base 10 000"][n] - float((k * frequencies).cos().mean())) < 1e-5 for n, k in enumerate(DISTANCES))
assert abs(rows["10 000, evenly spaced"][3]) < 0.1 < rows["base 10 000"][4]
assert max(abs(a - b) for a, b in zip(rows["base 10 000"], rows["10 000, slowest first"], strict=True)) < 1e-4
