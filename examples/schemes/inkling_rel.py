"""Inkling's relative profiles: each query mixes learned profiles of the distance into its own bias.

    score[h, i, j] = q_i · k_j / √d + r_hi · P[:, i − j]          r_hi = W_h x_i
                                                                  0 ≤ i − j < extent;  beyond, the bias is 0

P holds ``profiles`` rows of ``extent`` numbers, one for each distance, shared by the heads of a layer. x_i is the input
of the layer's attention. Nothing rotates, and nothing is added to the keys, so a KV cache has its usual content.

Learned: P and W, both drawn from N(0, 0.02²). So training starts almost without positions. Beyond ``extent`` tokens
only content counts, and a text longer than the trained length needs no new number. Inkling has 1,024 distances in its
global layers and 512, their window, in the others: ``layers={"0::2": …}``. It also normalises queries and keys and
divides by d instead of √d. Those are parts of the model, which a scheme does not change.

transformers 5.24, `InklingRelativeLogits` and `InklingAttention` in ``models/inkling/modeling_inkling.py``; no paper.

    hf-posenc check --model starter:llama --scheme inkling_rel --import examples/schemes/inkling_rel.py
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from hf_posenc.extend import (
    Block,
    BlockBias,
    Geometry,
    PositionContext,
    PositiveInt,
    Scheme,
    register_scheme,
)

STD = 0.02
MODEL = "https://github.com/huggingface/transformers/tree/main/src/transformers/models/inkling"


@register_scheme("inkling_rel", aliases=("relative_profiles",), paper=MODEL)
class InklingRel(Scheme):
    """Learned profiles of the distance, mixed by content, one mixture per query and head. For training.

    ``profiles`` and ``extent`` are the rows and columns of the table: d_rel and rel_extent of Inkling's configuration.
    """

    formula = r"""
    \mathrm{score}_{hij} = \frac{q_i \cdot k_j}{\sqrt d} + r_{hi} \cdot P_{:, \, i - j},
      \quad r_{hi} = W_h x_i, \quad 0 \le i - j < \mathtt{extent}
    """

    shared = False
    needs_causal = True
    later_keys = False

    def __init__(self, geometry: Geometry, *, profiles: PositiveInt = 16, extent: PositiveInt = 1024) -> None:
        super().__init__(geometry)
        self.mixture = nn.Linear(geometry.width, geometry.heads * profiles, bias=False)
        self.profiles = nn.Parameter(torch.zeros(profiles, extent))

    def reset_parameters(self) -> None:
        """Redraw both from N(0, 0.02²)."""
        nn.init.normal_(self.mixture.weight, std=STD)
        nn.init.normal_(self.profiles, std=STD)

    def bias(self, ctx: PositionContext) -> BlockBias:
        """The mixed profile of each query of a block, at the distance of each key."""
        return BlockBias(partial(self.of_block, ctx.hidden), reads_scores=False)

    def of_block(self, hidden: Tensor, block: Block) -> Tensor:
        """r · P at every pair, ``[batch, heads, n, key]``; 0 from distance ``extent`` on."""
        mixture = self.mixture(hidden[:, block.rows]).float().unflatten(-1, (self.geometry.heads, -1))
        of_distance = mixture.transpose(1, 2) @ self.profiles.float()  # [batch, heads, n, extent]
        distance = block.distance[:, None]
        inside = (distance >= 0) & (distance < of_distance.shape[-1])
        column = torch.where(inside, distance, 0).expand(*of_distance.shape[:3], -1)
        return of_distance.gather(-1, column) * inside
