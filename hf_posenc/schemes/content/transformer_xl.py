"""Transformer-XL: projected sinusoids of the distance, with two learned vectors in place of absolute positions.

    score[i, j] = ((q_i + u) · k_j + (q_i + v) · W_R R_{i−j}) / √d      R_Δ = [sin Δω, cos Δω],  ω_m = base^(−2m / D)

The four terms are content–content, content–distance, a bias of content (u) and a bias of distance (v). Only the
distances that occur are projected. If the distances are sparse, fractional or unknown (a traced graph), the sinusoid of
a difference is computed as a product. With a = W_Rᵀ (q_i + v): a · R_{i−j} = rotate(a, i) · R_{−j}.

Learned: W_R, u, v, drawn from N(0, 0.02²); training is needed. An encoder has negative distances as well.

Dai, Yang, Yang, Carbonell, Le, Salakhutdinov 2019, arXiv:1901.02860, section 3.3; XLNet for both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from hf_posenc.core.constants import constant
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry, Rotation, geometric
from hf_posenc.core.grouped_heads import products
from hf_posenc.core.rotation import cos_sin, rotate, table
from hf_posenc.core.terms import Block, BlockBias, ShiftedQuery
from hf_posenc.core.tracing import has_dynamic_length, is_traced
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.distances import skewed
from hf_posenc.schemes.content.inside import only_inside
from hf_posenc.schemes.options import Base, PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.weights import LinearWeights

STD = 0.02
AHEAD = 8  # a text that continues is projected an eighth of its length in advance
Reach: TypeAlias = tuple[int, int]  # the smallest and the largest distance
OfDistance: TypeAlias = Callable[[Tensor, Block], Tensor]


@register_scheme("transformer_xl", aliases=("txl", "functional_relative"), paper="1901.02860")
class TransformerXL(Scheme):
    """Projected sinusoids of the distance, with learned biases of content and distance. Defined at every length.

    ``clamp_len`` clips distances (−1: no clipping). ``share_uv`` uses one u and one v for all layers; each layer keeps
    its own W_R. All three have one part per query head, even if several query heads share a key head.
    """

    formula = r"""
    \mathrm{score}_{ij} &= \left( (q_i + u) \cdot k_j + (q_i + v) \cdot W_R R_{i - j} \right) / \sqrt d \\
    R_\Delta &= [\sin \Delta \omega, \, \cos \Delta \omega], \quad \omega_m = \mathrm{base}^{-2m/D}
    """

    later_keys = False
    sharing_option = "share_uv"

    def __init__(
        self,
        geometry: Geometry,
        *,
        clamp_len: PositiveInt | Literal[-1] = -1,
        share_uv: bool = False,
        base: Base = 10_000.0,
    ) -> None:
        super().__init__(geometry)
        self.shared = share_uv
        self.clamp_len = clamp_len
        self.frequencies = Rotation(geometric(base, geometry.width - geometry.width % 2))
        heads, dim = geometry.heads, geometry.head_dim
        self.u = nn.Parameter(torch.zeros(heads, dim))
        self.v = nn.Parameter(torch.zeros(heads, dim))
        count = geometry.layers if share_uv else 1
        rows = [LinearWeights(self.frequencies.dims, heads * dim, bias=False) for _ in range(count)]
        self.project = nn.ModuleList(rows)

    def reset_parameters(self) -> None:
        """Redraw u, v and W_R, N(0, 0.02²)."""
        for weight in self.parameters():
            nn.init.normal_(weight, std=STD)

    def bias(self, ctx: PositionContext) -> BlockBias:
        """The three terms added to q · k, a block of queries at a time."""
        if self.shared and ctx.layer is None:
            return only_inside(self.record.name, "the W_R of a layer")
        weight, reach = self.weight(ctx.layer if self.shared else 0), self.reach(ctx)  # type: ignore[arg-type]
        if reach is None:
            return self.with_distance_term(partial(self._by_product, weight))
        if ctx.kept is None and ctx.query_positions.shape[1] < self.geometry.head_dim:
            return self.with_distance_term(partial(self._by_sinusoids, weight, self.sinusoids_in(reach, ctx), reach))
        codes = self.codes(reach, weight, ctx) if ctx.kept is None else self.kept_codes(reach, weight, ctx)
        if ctx.contiguous and not torch.is_grad_enabled():
            return self.with_distance_term(partial(self._by_skew, codes, reach))
        return self.with_distance_term(partial(self._by_codes, codes, reach))

    def with_distance_term(self, distance_term: OfDistance) -> BlockBias:
        """The bias, with a function that computes its distance term, q · W_R R."""
        # A copy: weights loaded from a file may be aligned differently in memory, and kernels then round differently.
        u = self.u.float().clone()
        rest = partial(self._distance_bias, distance_term)
        return BlockBias(partial(self._block_bias, u, rest), reads_scores=False, shifted=ShiftedQuery(u, rest))

    def reach(self, ctx: PositionContext) -> Reach | None:
        """The range of a call's distances; None if it is unknown, or if few distances within it occur."""
        keys = ctx.key_positions.shape[1]
        if ctx.remapped or ctx.query_positions.is_floating_point() or has_dynamic_length(keys):
            return None
        if ctx.contiguous:
            farthest = keys - 1
        elif is_traced():
            return None  # values are unknown while tracing
        else:
            farthest = ctx.once("transformer_xl reach", lambda: farthest_pair(ctx))
        if self.clamp_len > 0:
            farthest = min(farthest, self.clamp_len)
        return (0 if ctx.causal else -farthest, farthest) if farthest < 2 * keys else None

    def weight(self, layer: int) -> Tensor:
        """W_R of one layer, ``[heads, head_dim, sinusoids]``, float32."""
        weight: Tensor = self.project[layer].weight  # type: ignore[assignment]  # a list of modules is not typed
        return weight.float().unflatten(0, self.u.shape)

    def codes(self, reach: Reach, weight: Tensor, ctx: PositionContext) -> Tensor:
        """W_R R of every distance from ``reach[0]`` to ``reach[1]``, ``[heads, distances, head_dim]``."""
        projected = self.sinusoids_in(reach, ctx) @ weight.flatten(0, 1).T
        return projected.unflatten(-1, self.u.shape).transpose(0, 1)

    def kept_codes(self, reach: Reach, weight: Tensor, ctx: PositionContext) -> Tensor:
        """`codes` for a text that continues: every distance is projected once, and some in advance.

        They are kept with the distances on the last axis, which multiplies a single query 2.7 times as fast.
        """
        smallest, farthest = reach
        memo: dict[int, Tensor] = ctx.once_per_text(("transformer_xl", *self.edition), dict)
        codes: Tensor | None = memo.get(smallest)
        end = smallest if codes is None else smallest + codes.shape[-1]  # the first distance without a code
        if codes is None or end <= farthest:
            new = self.codes((end, farthest + farthest // AHEAD), weight, ctx).transpose(-1, -2)
            memo[smallest] = codes = new.contiguous() if codes is None else torch.cat((codes, new), dim=-1)
        return codes[..., : farthest - smallest + 1].transpose(-1, -2)

    def sinusoids_in(self, reach: Reach, ctx: PositionContext) -> Tensor:
        """R of every distance from ``reach[0]`` to ``reach[1]``, ``[distances, sinusoids]``, the same in all layers."""
        distances = torch.arange(reach[0], reach[1] + 1, device=ctx.device)[None]
        return ctx.once(("transformer_xl", self.frequencies, reach), lambda: self.sinusoids(distances)[0])

    def sinusoids(self, distance: Tensor) -> Tensor:
        """R of distances ``[batch, n]``, ``[batch, n, sinusoids]``, float32 from float64 angles."""
        cos, sin = cos_sin(self.frequencies, distance)
        return torch.cat((sin, cos), dim=-1)

    def _block_bias(self, u: Tensor, rest: Callable[[Block], Tensor], block: Block) -> Tensor:
        content_bias = products((u * block.scaling)[None, :, None].expand(block.key.shape[0], -1, 1, -1), block.key)
        return rest(block) + content_bias

    def _distance_bias(self, distance_term: OfDistance, block: Block) -> Tensor:
        return distance_term((block.query + self.v.float()[:, None]) * block.scaling, block)

    def _by_skew(self, codes: Tensor, reach: Reach, query: Tensor, block: Block) -> Tensor:
        """(q + v) · W_R R of all pairs, ``[batch, heads, n, key]``, for consecutive positions."""
        return skewed(query, codes, lambda distance: distance.clamp(*reach) - reach[0], block)

    def _by_codes(self, codes: Tensor, reach: Reach, query: Tensor, block: Block) -> Tensor:
        """`_by_skew` for any positions: the product with every distance, from which each pair gathers its own."""
        return gathered(query @ codes.transpose(-1, -2), reach, block)

    def _by_sinusoids(self, weight: Tensor, sinusoids: Tensor, reach: Reach, query: Tensor, block: Block) -> Tensor:
        """`_by_codes` for a few queries: projecting them by W_R is cheaper than projecting every distance."""
        return gathered(query @ weight @ sinusoids.T, reach, block)

    def _by_product(self, weight: Tensor, query: Tensor, block: Block) -> Tensor:
        """`_by_codes` from sinusoids of the positions: exact for all positions, for D / head_dim times the work."""
        projected = query @ weight
        rotated = rotate(projected, self.frequencies, table(self.frequencies, block.query_positions))
        scores = rotated @ self.sinusoids(-block.key_positions)[:, None].transpose(-1, -2)
        if self.clamp_len < 0:
            return scores
        distance = block.distance[:, None]
        ends = constant((-self.clamp_len, self.clamp_len), torch.long, distance.device)[None]
        nearest, farthest = (projected @ self.sinusoids(ends)[0].T).split(1, dim=-1)
        scores = torch.where(distance < -self.clamp_len, nearest, scores)
        return torch.where(distance > self.clamp_len, farthest, scores)


def gathered(by_distance: Tensor, reach: Reach, block: Block) -> Tensor:
    """Gather the values of the pairs of a block, ``[…, n, key]``, from ``by_distance [batch, heads, n, distances]``."""
    index = block.distance.clamp(*reach) - reach[0]
    return by_distance.gather(-1, index[:, None].expand(*by_distance.shape[:-1], -1))


def farthest_pair(ctx: PositionContext) -> int:
    """The largest distance between a query and a key of a call, in either direction."""
    queries, keys = ctx.query_positions, ctx.key_positions
    return int(torch.maximum(queries.max() - keys.min(), keys.max() - queries.min()))
