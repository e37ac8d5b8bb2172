"""DeBERTa: disentangled attention, with separate score terms for content and relative position.

    score[i, j] = (q_i · k_j + q_i · Kr[δ(i, j)] + k_j · Qr[δ(i, j)]) / √((1 + terms) d)
                   content     content to position   position to content
    Kr = W_k P,  Qr = W_q P,   δ(i, j) = clip(b(i − j) + h, 0, 2h − 1),   P: 2h × width

b is the distance itself (h = span), or with buckets (h = buckets)

    b(n) = n                                                              for |n| ≤ m = buckets / 2
           sign(n) (m + ⌈(m − 1) ln(|n| / m) / ln((span − 1) / m)⌉)       beyond

Learned: the table P, one for all layers, and with ``norm`` its LayerNorm; training is needed. W_k and W_q are the
layer's own projections of content, or with ``share_key=False`` a separate pair for positions in every layer. The
default is DeBERTa's second and third version; the first has ``buckets=-1, norm=False, share_key=False``.

The paper prints δ(j, i) in the last term; the released code, and models trained with it, have δ(i, j). A decoder uses
the half of P for earlier keys.

He, Liu, Gao, Chen 2020, arXiv:2006.03654, section 3.1; He, Gao, Chen 2021, arXiv:2111.09543; the released code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from annotated_types import Ge
from torch import Tensor, nn

from hf_posenc.core.constants import constant
from hf_posenc.core.context import PositionContext, Projections
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.grouped_heads import products
from hf_posenc.core.terms import Block, BlockBias, ShiftedQuery
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.distances import bucket_starts, near_and_far, skewed
from hf_posenc.schemes.content.inside import PositionProjections, only_inside
from hf_posenc.schemes.options import PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.weights import TableWeights

Disentangled: TypeAlias = Literal["c2p+p2c", "c2p", "p2c"]
Buckets: TypeAlias = Annotated[int, Ge(4)] | Literal[-1]
STD = 0.02
EPSILON = 1e-7  # in the norms of the released models


@dataclass(frozen=True)
class Codes:
    """The table, projected by a layer, float32.

    Attributes:
        keys: Kr, ``[kv_heads, rows, head_dim]``; None without content-to-position scores.
        queries: Qr, ``[heads, rows, head_dim]``; None without position-to-content scores.
        far_queries: Qr for keys beyond the clipping distance; None if it is zero there.
        behind: Qr of all nearer keys, gathered by distance, the farthest first, ``[heads, distances, head_dim]``; or
            None.
    """

    keys: Tensor | None
    queries: Tensor | None
    far_queries: Tensor | None
    behind: Tensor | None = None


@register_scheme("deberta", aliases=("disentangled",), paper="2006.03654")
class DeBERTa(Scheme):
    """Content-to-position and position-to-content scores through the layer's own projections. Defined at every length.

    ``terms`` chooses content-to-position, position-to-content or both. Distances beyond ``span`` are clipped.
    ``buckets`` are narrow for near keys and wide for far ones (−1: no buckets). ``p2c_index="paper"`` uses the last
    term as printed.
    """

    formula = r"""
    \mathrm{score}_{ij} &= \frac{\overbrace{q_i \cdot k_j}^{\text{content}}
      + \overbrace{q_i \cdot K^r_{\delta(i,j)}}^{\text{content to position}}
      + \overbrace{k_j \cdot Q^r_{\delta(i,j)}}^{\text{position to content}}}{\sqrt{(1 + \mathrm{terms}) \, d}} \\
    K^r &= W_k P, \quad Q^r = W_q P, \quad P : 2h \times \mathrm{width} \\
    \delta(i, j) &= \mathrm{clip}(b(i - j) + h, \, 0, \, 2h - 1)

    b(n) = \begin{cases}
    n & |n| \le m = \mathtt{buckets} / 2 \\
    \mathrm{sign}(n) \left( m + \left\lceil
      (m - 1) \dfrac{\ln(|n| / m)}{\ln((\mathtt{span} - 1) / m)} \right\rceil \right) & \text{beyond}
    \end{cases}
    """

    option_aliases: ClassVar[dict[str, str]] = {
        "max_relative_positions": "span",
        "position_buckets": "buckets",
        "norm_rel_ebd": "norm",
        "share_att_key": "share_key",
    }

    later_keys = False
    whole_positions = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        terms: Disentangled = "c2p+p2c",
        span: PositiveInt = 512,
        buckets: Buckets = 256,
        norm: bool = True,
        share_key: bool = True,
        p2c_index: Literal["code", "paper"] = "code",
    ) -> None:
        super().__init__(geometry)
        if buckets > 0 and span <= buckets // 2 + 1:
            raise OptionOutOfRange(
                f"span must be greater than {buckets // 2 + 1} with {buckets} buckets, because half of them hold "
                f"one distance each, got {span}. Use fewer buckets, or buckets=-1 for none."
            )
        self.active = terms.split("+")
        self.mirrored = p2c_index == "paper"
        self.starts = bucket_starts(buckets, span) if buckets > 0 else tuple(range(1, span + 1))
        self.table = TableWeights(2 * self.side, geometry.width)
        self.norm = nn.LayerNorm(geometry.width, eps=EPSILON) if norm else None
        count = 0 if share_key else geometry.layers
        self.own = nn.ModuleList(PositionProjections(geometry, self.active) for _ in range(count))

    @property
    def side(self) -> int:
        """Rows of the table for each direction."""
        return len(self.starts)

    @property
    def farthest(self) -> int:
        """Distance from which on, in either direction, all pairs have the same row."""
        return self.starts[-1]

    def reset_parameters(self) -> None:
        """Redraw the table and the projections, N(0, 0.02²); reset the norm to weight 1 and bias 0."""
        nn.init.normal_(self.table.weight, std=STD)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=STD)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        if self.norm is not None:
            self.norm.reset_parameters()

    def keep_layer(self, layer: int) -> None:
        self.own = nn.ModuleList(own if n == layer else nn.Module() for n, own in enumerate(self.own))

    def logit_scale(self) -> float:
        """1 / √(1 + terms): the sum of all terms then has the variance of a single one."""
        return (1 + len(self.active)) ** -0.5

    def bias(self, ctx: PositionContext) -> BlockBias:
        """Both terms, one block of queries at a time; outside a model, computing them raises `OutsideModel`."""
        project = ctx.projections
        if project is None or ctx.layer is None:
            return only_inside(self.record.name, "a layer's own projections")
        if len(self.own) > 0:
            project = self.own[ctx.layer]  # type: ignore[assignment]  # modules are not typed by what they hold
        dtype = self.table.weight.dtype if ctx.hidden is None else ctx.hidden.dtype  # dtype of the projections
        make = partial(self.projected, project, dtype, continues=ctx.kept is not None)
        codes, shifted = ctx.once_per_text(("deberta", *self.edition), make)
        ahead = ctx.ahead if ctx.steady and not is_traced() else None
        return BlockBias(
            partial(self._block_bias, codes, ahead),
            reads_scores=False,
            shifted=shifted and ShiftedQuery(shifted[0], partial(self._block_bias, shifted[1], ahead)),
        )

    def projected(
        self, project: Projections, dtype: torch.dtype, continues: bool
    ) -> tuple[Codes, tuple[Tensor, Codes] | None]:
        """The table, projected by a layer; in a decoder also Qr of all far keys, and the codes without that Qr.

        For a text that ``continues`` token by token, the rows that each token reads are gathered once.
        """
        rows = self.codes().to(dtype)
        keys = project.key(rows[self.rows()]).float() if "c2p" in self.active else None
        if "p2c" not in self.active:
            return Codes(keys, None, None), None
        queries = project.query(rows[self.rows(self.mirrored)]).float()
        codes = Codes(keys, queries, queries)
        if not self.geometry.causal:
            return codes, None
        farthest = queries[:, 0 if self.mirrored else -1]
        remaining = queries - farthest[:, None]
        behind = remaining[:, self._rows_by_distance()] if continues else None
        return codes, (farthest, Codes(keys, remaining, None, behind))

    def _rows_by_distance(self) -> Tensor:
        """The rows of Qr for all distances below the clipping distance, the largest first."""
        distance = torch.arange(self.farthest - 1, -1, -1, device=self.table.weight.device)
        return self.index(-distance if self.mirrored else distance) - self.rows(self.mirrored).start

    def codes(self) -> Tensor:
        """The table before projection, ``[2 · side, width]``, in its own dtype; normalised with ``norm``."""
        table = self.table.weight
        if self.norm is None:
            return table
        weight, bias = self.norm.weight.float(), self.norm.bias.float()
        return nn.functional.layer_norm(table.float(), table.shape[-1:], weight, bias, EPSILON).to(table.dtype)

    def rows(self, mirrored: bool = False) -> slice:
        """The rows of the table that this model uses: a decoder uses none for later keys."""
        if not self.geometry.causal:
            return slice(0, 2 * self.side)
        return slice(0, self.side + 1) if mirrored else slice(self.side, 2 * self.side)

    def index(self, distance: Tensor) -> Tensor:
        """δ: the row of the table for each distance (query − key), int64, same shape."""
        starts = constant(self.starts, distance.dtype, distance.device)
        steps = torch.bucketize(distance.abs(), starts, right=True)
        return (self.side + torch.where(distance < 0, -steps, steps)).clamp(max=2 * self.side - 1)

    def _block_bias(self, codes: Codes, ahead: int | None, block: Block) -> Tensor:
        """Both terms of a block, ``[batch, heads, n, key]``.

        ``ahead`` is the number of keys before the first query of the call if positions are consecutive, else None.
        """
        block = replace(block, query=block.query * block.scaling)
        near = partial(self._near_bias, codes, ahead is not None and not torch.is_grad_enabled())
        if ahead is None:
            return near(block)
        first = ahead + (block.rows.start or 0)
        far = partial(self._far_bias, codes)
        return near_and_far(block, first, self.farthest, causal=self.geometry.causal, near=near, far=far)

    def _far_bias(self, codes: Codes, block: Block, distance: int) -> Tensor:
        """Both terms if all keys have the row of one distance: a value of the query plus a value of the key."""
        terms = []
        if codes.keys is not None:
            row = self.row(distance)
            terms.append(products(block.query, codes.keys[None, :, row : row + 1]))
        if codes.far_queries is not None:
            row = self.row(distance, self.mirrored)
            code = codes.far_queries[None, :, row : row + 1].expand(len(block.query), -1, -1, -1)
            terms.append(products(code * block.scaling, block.key))
        return sum(terms, block.query.new_zeros(1, 1, 1, 1))

    def row(self, distance: int, mirrored: bool = False) -> int:
        """The row of a distance, counted among the rows that this model uses."""
        at = torch.tensor(-distance if mirrored else distance)
        return int(self.index(at)) - self.rows(mirrored).start

    def _near_bias(self, codes: Codes, skew: bool, block: Block) -> Tensor:
        """Both terms if every pair has its own row."""
        distance = block.distance.clamp(min=0) if self.geometry.causal else block.distance
        terms = []
        if codes.keys is not None:
            terms.append(self._content_to_position(codes.keys, distance, skew, block))
        if codes.queries is not None:
            terms.append(self._position_to_content(codes, distance, skew, block))
        return sum(terms[1:], terms[0])

    def _position_to_content(self, codes: Codes, distance: Tensor, skew: bool, block: Block) -> Tensor:
        """Qr[δ(i, j)] · k_j, ``[batch, heads, n, key]``."""
        _, n, keys = distance.shape
        if skew and n == 1 and codes.behind is not None and keys <= codes.behind.shape[1]:
            return position_to_content_of_one(codes.behind[None, :, -keys:], block)
        index = self.index(-distance if self.mirrored else distance) - self.rows(self.mirrored).start
        if n == 1:
            return position_to_content_of_one(codes.queries[:, index[:, 0]].transpose(0, 1), block)  # type: ignore[index]
        return position_to_content(codes.queries, index, block)  # type: ignore[arg-type]

    def _content_to_position(self, keys: Tensor, distance: Tensor, skew: bool, block: Block) -> Tensor:
        """q_i · Kr[δ(i, j)], ``[batch, heads, n, key]``, for ``keys [kv_heads, rows of the table, head_dim]``."""
        batch, heads = block.query.shape[:2]
        if skew and distance.shape[1] > 1:

            def row_of(distance: Tensor) -> Tensor:
                visible = distance.clamp(min=0) if self.geometry.causal else distance
                return self.index(visible) - self.rows().start

            return skewed(block.query, keys.repeat_interleave(heads // len(keys), 0), row_of, block)
        index = self.index(distance) - self.rows().start
        by_row = products(block.query, keys[None])  # [batch, heads, n, rows of the table]
        return by_row.gather(3, index[:, None].expand(batch, heads, -1, -1))


def position_to_content(queries: Tensor, index: Tensor, block: Block) -> Tensor:
    """Qr[δ(i, j)] · k_j · scaling, ``[batch, heads, n, key]``, for ``queries [heads, rows of the table, head_dim]``."""
    batch, heads = block.query.shape[:2]
    codes = (queries * block.scaling).expand(batch, -1, -1, -1)
    by_row = products(codes, block.key)  # [batch, heads, rows of the table, key]
    return by_row.gather(2, index[:, None].expand(batch, heads, -1, -1))


def position_to_content_of_one(rows: Tensor, block: Block) -> Tensor:
    """`position_to_content` for one query, from the ``rows`` of its keys, ``[batch or 1, heads, key, head_dim]``."""
    rows = rows.unflatten(1, (block.key.shape[1], -1))  # [batch or 1, kv_heads, group, key, head_dim]
    return (rows * block.key[:, :, None]).sum(-1).flatten(1, 2)[:, :, None] * block.scaling
