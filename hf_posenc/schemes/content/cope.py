"""CoPE: contextual positions, which count the tokens that each query gates, and index a table of learned vectors.

    score[i, j] = q_i · k_j / √d + q_i · e[p_ij]       g_it = σ(q_i · k_t / √d)
    p_ij = Σ g_it over the visible keys t from j to i, at most npos − 1;   e is interpolated linearly between its rows

With all gates open p is the distance plus one. In an encoder the sum runs between the two tokens, whichever is first;
e does not distinguish left from right.

Learned: e, npos × head_dim for all heads; training is needed. e is zero at first, so training starts without positions,
or with those of a composed scheme. The gates are computed for one block of queries at a time, and only for the latest
keys: back to where the count of every query has reached the last row of e.

Golovneva, Wang, Weston, Sukhbaatar 2024, arXiv:2405.18719, section 4; appendix B for the code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.grouped_heads import products
from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.core.tracing import has_values
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import AtLeastTwo, Positive
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.weights import TableWeights


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
    later_keys = False
    sharing_option = "per_layer"

    def __init__(
        self,
        geometry: Geometry,
        *,
        npos: AtLeastTwo = 64,
        per_layer: bool = True,
        gate_scale: Positive | None = None,
    ) -> None:
        super().__init__(geometry)
        self.shared = not per_layer
        self.gate_scale = gate_scale
        self.table = TableWeights(npos, geometry.head_dim)

    def reset_parameters(self) -> None:
        """Reset the table to zeros."""
        nn.init.zeros_(self.table.weight)

    def bias(self, ctx: PositionContext) -> BlockBias:
        """q · e[p], a block of queries at a time, with a gradient to the table and through the gates."""
        return BlockBias(self._block_bias, reads_scores=False)

    def _block_bias(self, block: Block) -> Tensor:
        table = self.table.weight.float()
        row_scores = block.query @ table.T  # [batch, heads, n, npos]
        count = self._unsaturated(block).clamp(max=len(table) - 1)
        below = count.detach().floor().long()
        lower, upper = (row_scores.gather(-1, row) for row in (below, (below + 1).clamp_(max=len(table) - 1)))
        near = torch.lerp(lower, upper, count - below)
        far = block.key.shape[2] - near.shape[3]
        return torch.cat((row_scores[..., -1:].expand(*near.shape[:3], far), near), dim=-1) if far else near

    def _unsaturated(self, block: Block) -> Tensor:
        """`counts` of the latest keys. For all earlier keys that a query sees, its count is at least the last row.

        The number of keys is read from the gates if reading values is cheap; otherwise it is all keys.
        """
        keys, last = block.key.shape[2], len(self.table.weight) - 1
        readable = self.geometry.causal and has_values(block.query) and block.query.device.type == "cpu"
        first = max(0, keys - block.query.shape[2] - 4 * last) if readable else 0
        while True:
            counts = self.counts(block, first)
            if first == 0 or bool(((counts[..., 0] >= last) | ~block.seen[..., :first].any(-1)).all()):
                return counts
            first = max(0, 2 * first - keys)

    def counts(self, block: Block, first: int = 0) -> Tensor:
        """p: sum of the gates between every query and every key from ``first`` on, both ends included.

        Returns:
            ``[batch, heads, n, keys from first on]``.
        """
        seen = block.seen if block.seen.shape[-1] == 1 else block.seen[..., first:]
        gates = self.scores(block, first).sigmoid() * seen
        if self.geometry.causal:
            return from_the_end(gates)
        distance = block.distance[:, None]
        behind = from_the_end(gates * (distance >= 0))
        ahead = (gates * (distance <= 0)).cumsum(-1)
        return torch.where(distance >= 0, behind, ahead)

    def scores(self, block: Block, first: int) -> Tensor:
        """q · k inside the gates, of the keys from ``first`` on."""
        if block.scores.numel():
            scores = block.scores[..., first:]
            return scores if self.gate_scale is None else scores * (self.gate_scale / block.scaling)
        scale = block.scaling if self.gate_scale is None else self.gate_scale
        return products(block.query, block.key[:, :, first:]) * scale


def from_the_end(gates: Tensor) -> Tensor:
    """Sum of each element and all later ones."""
    return gates.flip(-1).cumsum(-1).flip(-1)
