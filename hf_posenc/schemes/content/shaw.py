"""Shaw's relative positions: a trained vector per clipped distance, added to the keys, optionally to the values.

    score[i, j] = q_i · (k_j + A_c) / √d          c = clip(j − i, −K, K) + K
    score[i, j] = (q_i · (k_j + A_c) + k_j · A_c) / √d                               with key_query
    z_i         = Σ_j α_ij (v_j + B_c)                                               with values

A and B have 2K + 1 rows of head_dim channels, which all heads of a layer share. Every query is multiplied with each row
of A once, and each pair gathers its product; no vector is formed per pair.

Shaw, Uszkoreit, Vaswani 2018, arXiv:1803.02155, section 3; ``key_query`` (relative_key_query): Huang, Liang, Xu, Xiang
2020, arXiv:2009.13658, method 4.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import Block, BlockBias, ValueBias
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.distances import clipped, key_scores, near_and_far, query_scores, skewed
from hf_posenc.schemes.options import PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.weights import TableWeights


@register_scheme("shaw", aliases=("relative_key",), paper="1803.02155")
class Shaw(Scheme):
    """A trained table of distances × channels for the keys of each layer. Defined at every length; for training.

    ``max_distance`` is K, 2 to 64 in the paper. ``values`` adds a second table to the values; ``key_query``
    multiplies the keys with the first table as well.
    """

    formula = r"""
    \mathrm{score}_{ij} &= q_i \cdot (k_j + A_c) / \sqrt d, \quad c = \mathrm{clip}(j - i, -K, K) + K \\
    \mathrm{score}_{ij} &= \left( q_i \cdot (k_j + A_c) + k_j \cdot A_c \right) / \sqrt d
      \quad \text{with } \mathtt{key\_query} \\
    z_i &= \sum_j \alpha_{ij} (v_j + B_c) \quad \text{with } \mathtt{values}
    """

    whole_positions = True

    def __init__(
        self, geometry: Geometry, *, max_distance: PositiveInt = 16, values: bool = False, key_query: bool = False
    ) -> None:
        super().__init__(geometry)
        self.shared = False
        self.max_distance, self.key_query = max_distance, key_query
        rows = 2 * max_distance + 1
        self.of_key = TableWeights(rows, geometry.head_dim)
        self.of_value = TableWeights(rows, geometry.head_dim) if values else None

    def reset_parameters(self) -> None:
        """Redraw the tables, Glorot-uniform, as the paper's code does."""
        for table in (self.of_key, self.of_value):
            if table is not None:
                nn.init.xavier_uniform_(table.weight)

    def bias(self, ctx: PositionContext) -> BlockBias:
        """Bias of the key table for a block of queries."""
        if ctx.steady and not self.key_query and not torch.is_grad_enabled():
            return BlockBias(partial(self._by_skew, ctx.ahead), reads_scores=False)
        return BlockBias(self._block_bias)

    def values(self, ctx: PositionContext) -> ValueBias | None:
        """Term of the value table in the attention output of a block of queries."""
        return None if self.of_value is None else ValueBias(self._value_term)

    def _block_bias(self, block: Block) -> Tensor:
        table, row = self.of_key.weight.float(), self._row(block)
        scores = query_scores(block.query, table, row)
        if self.key_query:
            scores = scores + key_scores(block.key, table, row, heads=block.query.shape[1])
        return scores * block.scaling

    def _by_skew(self, ahead: int, block: Block) -> Tensor:
        """`_block_bias` for consecutive positions, with ``ahead`` keys before the first query of the call."""
        block = replace(block, query=block.query * block.scaling)
        causal = self.geometry.causal
        first = ahead + (block.rows.start or 0)
        return near_and_far(block, first, self.max_distance, causal=causal, near=self._near_bias, far=self._far_bias)

    def _near_bias(self, block: Block) -> Tensor:
        row_of = partial(clipped, farthest=self.max_distance)
        return skewed(block.query, self.of_key.weight.float(), row_of, block)

    def _far_bias(self, block: Block, distance: int) -> Tensor:
        row = int(clipped(torch.tensor(distance), self.max_distance))
        return block.query @ self.of_key.weight.float()[row, :, None]

    def _value_term(self, weights: Tensor, block: Block) -> Tensor:
        """Σ_j α_ij B_c: sum the weights of each distance, then multiply by its vector."""
        table = self.of_value.weight.float()  # type: ignore[union-attr]
        row = self._row(block)[:, None].expand(weights.shape)
        sums = torch.zeros(*weights.shape[:-1], len(table), dtype=weights.dtype, device=weights.device)
        return sums.scatter_add(-1, row, weights) @ table

    def _row(self, block: Block) -> Tensor:
        return clipped(block.distance, self.max_distance)
