"""CoPE: contextual positions, which count the tokens that each query gates, and index a table of learned vectors.

    score[i, j] = q_i · k_j / √d + q_i · e[p_ij]       g_it = σ(q_i · k_t / √d)
    p_ij = Σ g_it over the visible keys t from j to i, at most npos − 1;   e is interpolated linearly between its rows

With all gates open p is the distance plus one. In an encoder the sum runs between the two tokens, whichever is first;
e does not distinguish left from right.

Learned: e, npos × head_dim for all heads, zero at first, so that training starts from no positions (or, composed, from
the other scheme's); training is needed. The gates are recomputed for every query: the cost is about that of two more
attentions, the memory that of a block of queries.

Golovneva, Wang, Weston, Sukhbaatar 2024, arXiv:2405.18719, section 4; appendix B for the code.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import torch
from annotated_types import Ge
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import Positive
from hf_posenc.schemes.registry import register_scheme

AtLeastTwo: TypeAlias = Annotated[int, Ge(2)]


@register_scheme("cope", aliases=("contextual",), paper="2405.18719")
class CoPE(Scheme):
    """Positions counted by content: each query's gates decide which tokens increase the distance to a key. Any length.

    ``npos`` is the number of rows of the table; ``per_layer=False`` shares it; ``gate_scale`` multiplies q · k inside
    the gates (default: the scaling of the model's scores).
    """

    formula = r"""
    \mathrm{score}_{ij} &= \frac{q_i \cdot k_j}{\sqrt d} + q_i \cdot e[p_{ij}] \\
    g_{it} &= \sigma(q_i \cdot k_t / \sqrt d) \\
    p_{ij} &= \min \Big( \sum_{t=j}^{i} g_{it}, \; n_\mathrm{pos} - 1 \Big) \quad \text{over visible keys $t$} \\
    e[p] &= \text{interpolated linearly between the rows of $e$}
    """

    silent_at_first = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        npos: AtLeastTwo = 64,
        per_layer: bool = True,
        gate_scale: Positive | None = None,
    ) -> None:
        super().__init__(geometry)
        self.shared = not per_layer  # type: ignore[misc]
        self.gate_scale = gate_scale
        self.table = nn.Embedding(npos, geometry.head_dim)

    def reset_parameters(self) -> None:
        """Reset the table to zeros."""
        nn.init.zeros_(self.table.weight)

    def bias(self, ctx: PositionContext) -> BlockBias:
        """q · e[p], a block of queries at a time, with a gradient to the table and through the gates."""
        return BlockBias(self._of_block)

    def _of_block(self, block: Block) -> Tensor:
        table = self.table.weight.float()
        count = self.counts(block).clamp(max=len(table) - 1)
        below = count.detach().floor()
        products = block.query @ table.T  # [batch, heads, n, npos]
        lower, upper = (products.gather(-1, at.long()) for at in (below, (below + 1).clamp(max=len(table) - 1)))
        return torch.lerp(lower, upper, count - below)

    def counts(self, block: Block) -> Tensor:
        """p: sum of the gates between every query and every key, both ends included, ``[batch, heads, n, key]``."""
        scores = block.scores if self.gate_scale is None else block.scores * (self.gate_scale / block.scaling)
        gates = scores.sigmoid() * block.seen
        if self.geometry.causal:
            return from_the_end(gates)
        distance = block.distance[:, None]
        behind = from_the_end(gates * (distance >= 0))
        ahead = (gates * (distance <= 0)).cumsum(-1)
        return torch.where(distance >= 0, behind, ahead)


def from_the_end(gates: Tensor) -> Tensor:
    """Sum of each element and all after it."""
    return gates.flip(-1).cumsum(-1).flip(-1)
