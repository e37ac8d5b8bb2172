"""Which matrix shifts a code by k positions?

M₁ is fitted by least squares to map codes of random positions to the codes one position later, M₂ to those two
positions later. If a step is a rotation, the eigenvalues of M₁ lie on the unit circle, their angles are the
frequencies, and M₂ = M₁ M₁. All this holds for the sinusoid; no matrix shifts binary digits.
"""

import math

import torch
from lesson import schemes, show
from properties import targets
from properties.target import FAR
from properties.translation import solve

rows, found = {}, {}
for scheme in schemes("sinusoidal", "binary"):
    target = targets(scheme)[0]
    end = (2**20 if target.reach == FAR else target.reach) - 2
    positions = torch.randperm(end, generator=torch.Generator().manual_seed(0))[:1024]
    at = [target.codes(positions + by) for by in (0, 1, 2)]
    half = len(positions) // 2  # the other half tests the fit
    one, two = (solve(at[0][:half], at[by][:half]) for by in (1, 2))
    residual = float((at[0][half:] @ one - at[1][half:]).norm() / (at[1][half:] - at[0][half:]).norm())
    found[scheme] = torch.linalg.eigvals(one)
    off_circle, squared = float((found[scheme].abs() - 1).abs().max()), float((one @ one - two).norm() / two.norm())
    rows[scheme] = residual, off_circle, squared
columns = "scheme", "residual on other positions, in steps", "eigenvalues off the unit circle", "M₁ M₁ against M₂"
show(columns, [(scheme, *values) for scheme, values in rows.items()])
for scheme, (residual, off_circle, _) in rows.items():
    if max(residual, off_circle) < 1e-4:
        angles = found[scheme].angle().abs().sort(descending=True).values[::2]
        hands = [(n, float(angles[n]), 2 * math.pi / float(angles[n])) for n in (0, 1, 2, len(angles) // 2)]
        show((f"{scheme}: hand", "radians per position", "positions per rotation"), hands)
        assert scheme != "sinusoidal" or all(abs(w / 10_000.0 ** (-2 * n / 128) - 1) < 1e-3 for n, w, _ in hands)
assert "binary" not in rows or rows["binary"][0] > 0.1
