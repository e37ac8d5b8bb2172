"""How does a rotation make scores depend on distance?

One query and one key of 32 channels are placed at 48 positions. Each pair of channels rotates by its own angle per
position. As R(i)ᵀ R(j) = R(j − i), their product depends only on the distance, and their norms stay the same. The
rotation that models run, the block-diagonal matrix and the product of complex numbers give the same result.
"""

import torch
from lesson import apart, show
from properties.layer import gaussian
from torch import Tensor

from hf_posenc.core.geometry import Rotation, geometric
from hf_posenc.core.rotation import rotate, table

DIMS, COUNT = 32, 48
frequencies, positions = geometric(10_000.0, DIMS), torch.arange(COUNT)
rotation, angles = Rotation(frequencies, "interleaved"), positions[:, None] * torch.tensor(frequencies).double()


def as_models_do(x: Tensor) -> Tensor:
    """``x [1, 1, 1, dims]`` at each of the positions, ``[n, dims]``."""
    return rotate(x.expand(1, 1, COUNT, -1), rotation, table(rotation, positions[None]))[0, 0]


query, key = gaussian(1, 1, 1, DIMS, seed=1), gaussian(1, 1, 1, DIMS, seed=2)
queries, keys, x = as_models_do(query), as_models_do(key), query.flatten()
blocks = [[torch.tensor([[a.cos(), -a.sin()], [a.sin(), a.cos()]]) for a in row] for row in angles]
forms = {
    "pairs of channels, as models run it": queries,
    "block-diagonal matrix": torch.stack([torch.block_diag(*row).double() @ x for row in blocks]),
    "complex numbers": torch.view_as_real(
        torch.view_as_complex(x.unflatten(0, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    ).flatten(1),
}
rows = [(name, apart(one, queries), float((one.norm(dim=-1) - x.norm()).abs().max())) for name, one in forms.items()]
show(("form", "difference to the first", "change of length"), rows)
scores = queries @ keys.T
moved = max(float((line - line[0]).abs().max()) for n in range(1 - COUNT, COUNT) for line in [scores.diagonal(n)])
print(f"Scores range over {float(scores.max() - scores.min()):.1f}; at one distance they differ by {moved:.0e}.")
assert max(moved, *(number for row in rows for number in row[1:])) < 1e-5
