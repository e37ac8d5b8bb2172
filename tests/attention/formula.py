"""Reference attention, dense and in float64, and small calls to compare with the engine.

Nothing here is shared with the engine: positions are rotated by complex numbers, the mask is evaluated pair by pair,
and the softmax is written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import Block, BlockBias, KeyBias, RowRotation, Terms, ToeplitzBias, ValueBias

REACH = 9  # learned tables end here and are clipped beyond
WINDOW = 7
TRAINED = 12  # rows longer than this are rotated more slowly


def mix(
    queries: list[Tensor],
    keys: list[Tensor],
    values: Tensor,
    seen: Tensor,
    *,
    scaling: float,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    bias: Tensor | float = 0.0,
    row_scale: Tensor | float = 1.0,
    claims: list[Tensor] | None = None,
    sink: Tensor | None = None,
    kept: Tensor | float = 1.0,
    table: Tensor | None = None,
) -> Tensor:
    """Σ_j w_ij v_j with w = softmax over seen pairs; everything dense, ``[batch, heads, query, key]``, float64.

    ``claims`` are the pairs of each region; ``table [batch, query, key, dim]`` is added to the values.
    """
    logits = scores(queries[0], keys[0]) * scaling
    if claims is not None:
        for query, key, claimed in zip(queries[1:], keys[1:], claims[1:], strict=True):
            logits = torch.where(claimed, scores(query, key) * scaling, logits)
        seen = seen & torch.stack(claims).any(0)
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    logits = ((logits + bias) * logit_scale * row_scale).masked_fill(~seen, -math.inf)
    top = logits.detach().amax(-1, keepdim=True).clamp(min=-1e300)
    unnormalised = (logits - top).exp()
    sink_term = 0.0 if sink is None else (sink[None, :, None, None] - top).exp()
    weights = unnormalised / (unnormalised.sum(-1, keepdim=True) + sink_term) * kept
    mixed = torch.einsum("bhij,bhjd->bhid", weights, repeated_heads(values, queries[0].shape[1]))
    return mixed if table is None else mixed + torch.einsum("bhij,bijd->bhid", weights, table)


def scores(query: Tensor, key: Tensor) -> Tensor:
    return torch.einsum("bhid,bhjd->bhij", query, repeated_heads(key, query.shape[1]))


def repeated_heads(shared: Tensor, heads: int) -> Tensor:
    """Key heads repeated so that every query head has one."""
    return torch.stack([shared[:, h * shared.shape[1] // heads] for h in range(heads)], dim=1)


@dataclass
class Position:
    """One kind of positional terms: as the engine takes them, and as the formula computes them.

    Attributes:
        terms: function of a context and the learned tensor or None.
        bias: float64 bias, a function of ``distance [batch, query, key]``, the query and the learned tensor.
        hidden: function of the distance: whether the pair is masked.
        claims: for each region, whether it has the pairs of positions ``query [..., 1], key [..., key]``.
        row_scale: factor of each row ``[batch, heads or 1, query]``, a function of positions ``[batch, query]``.
        sink: whether the learned tensor is a sink.
        to_values: summand of the values ``[batch, query, key, dim]``, a function of learned tensor and distance.
        rotated: whether rows are rotated by their own length.
        learned: shape of the learned tensor, a function of ``heads, head_dim``.
    """

    terms: Callable[[PositionContext, Tensor | None], Terms]
    bias: Callable[[Tensor, Tensor, Tensor | None], Tensor | float] = lambda distance, query, learned: 0.0
    hidden: Callable[[Tensor], Tensor] | None = None
    claims: tuple[Callable[[Tensor, Tensor], Tensor], ...] = ()
    row_scale: Callable[[Tensor], Tensor] | None = None
    sink: bool = False
    to_values: Callable[[Tensor, Tensor], Tensor] | None = None
    rotated: bool = False
    learned: Callable[[int, int], tuple[int, ...]] | None = None
    logit_scale: float = 1.0
    causal_only: bool = False

    @property
    def regions(self) -> int:
        return max(1, len(self.claims))


def slopes(heads: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([2.0 ** (-(h + 1)) for h in range(heads)], dtype=dtype)


def wave(distance: Tensor, heads: int) -> Tensor:
    """An arbitrary bias that tells left from right, ``[heads, …]``, with heads innermost in memory as in T5."""
    return torch.stack([torch.sin(0.7 * distance + h) - 0.05 * distance for h in range(heads)], -1).movedim(-1, 0)


def clipped(distance: Tensor) -> Tensor:
    return distance.clamp(-REACH, REACH) + REACH


def row_frequencies(length: int, pairs: int) -> tuple[float, ...]:
    return tuple((TRAINED / length) * 0.3**m for m in range(pairs))


def key_terms(heads: int) -> Callable[[PositionContext, Tensor | None], Terms]:
    def terms(ctx: PositionContext, learned: Tensor | None) -> Terms:
        offset = (ctx.key_positions - ctx.query_positions[:, -1:]).float()
        values = slopes(heads)[None, :, None] * offset[:, None]
        return Terms(bias=(KeyBias(values, slopes(heads)),), logit_scale=1.25)

    return terms


def two_regions(width: int) -> tuple[Region, Region]:
    """Near and far pairs."""
    return Region(Band(None, width)), Region(Band(width, None))


def positions_of(heads: int, head_dim: int) -> dict[str, Position]:
    """Every kind of terms for which the engine has a route, and the mixtures that only dense blocks compute."""
    line = lambda d, q, t: -slopes(heads, torch.float64)[:, None, None] * d[:, None]  # noqa: E731
    wave_bias = lambda d, q, t: wave(d.double(), heads).transpose(0, 1)  # noqa: E731
    table = lambda d, q, t: t[:, clipped(d)].transpose(0, 1)  # noqa: E731
    content = lambda d, q, t: torch.einsum("bhid,bijd->bhij", q, t[clipped(d)])  # noqa: E731
    waved = ToeplitzBias(lambda d: wave(d.float(), heads))
    near, far = two_regions(WINDOW)
    band = Band(1 - WINDOW, WINDOW)
    halves = (lambda i, j: i - j < WINDOW, lambda i, j: i - j >= WINDOW)
    outside = lambda d: (d >= WINDOW) | (d <= -WINDOW)  # noqa: E731

    def of_rows(ctx: PositionContext, learned: Tensor | None) -> Terms:
        rows = RowRotation(lambda p: (p + 1).clamp(min=TRAINED), lambda n: Rotation(row_frequencies(n, head_dim // 2)))
        return Terms(row_rotation=rows)

    def by_content(ctx: PositionContext, learned: Tensor | None) -> Terms:
        def of_block(block: Block) -> Tensor:
            by_reach = block.query @ learned.transpose(0, 1)  # type: ignore[union-attr]
            at = clipped(block.distance)[:, None].expand(*by_reach.shape[:3], block.distance.shape[-1])
            return by_reach.gather(-1, at)

        return Terms(bias=(BlockBias(of_block),))

    def looked_up(ctx: PositionContext, learned: Tensor | None) -> Terms:
        return Terms(bias=(ToeplitzBias(lambda d: learned[:, clipped(d)]),), logit_scale=0.8)  # type: ignore[index]

    def by_slope(ctx: PositionContext, learned: Tensor | None) -> Terms:
        offset = ctx.key_positions - ctx.query_positions[:, -1:]
        return Terms(bias=(KeyBias(0.1 * learned[None, :, None] * offset[:, None]),))  # type: ignore[index]

    def mixture(ctx: PositionContext, learned: Tensor | None) -> Terms:
        return key_terms(heads)(ctx, None).merge(Terms(bias=(waved,), visible=band))

    def two_biases(ctx: PositionContext, learned: Tensor | None) -> Terms:
        return looked_up(ctx, learned).merge(Terms(bias=(waved,)))

    def growing(positions: Tensor) -> Tensor:
        return torch.stack([1 + 0.02 * (h + 1) * positions.double().add(1).log() for h in range(heads)], dim=1)

    def added(ctx: PositionContext, learned: Tensor | None) -> Terms:
        def of_weights(weights: Tensor, block: Block) -> Tensor:
            return torch.einsum(
                "bhij,bijd->bhid", weights, learned[clipped(block.distance)].expand(len(weights), -1, -1, -1)
            )

        return Terms(values=(ValueBias(of_weights),))

    def scaled(ctx: PositionContext, learned: Tensor | None) -> Terms:
        return Terms(bias=(waved,), row_scale=growing(ctx.query_positions).float(), logit_scale=0.9)

    chunked = [Band(None, 1, chunk=5), Band(1, 2, chunk=5), Band(2, None, chunk=5)]
    first = [Band(None, WINDOW), Band(WINDOW, None, keys_until=3)]
    by_row = [Band(rows_until=TRAINED), Band(rows_from=TRAINED)]
    reach = 2 * REACH + 1
    return {
        "plain": Position(lambda ctx, t: Terms(logit_scale=1.4), logit_scale=1.4),
        "key bias": Position(key_terms(heads), line, logit_scale=1.25, causal_only=True),
        "learned slopes": Position(
            by_slope, lambda d, q, t: -0.1 * t[:, None, None] * d[:, None], learned=lambda h, d: (h,), causal_only=True
        ),
        "toeplitz": Position(lambda ctx, t: Terms(bias=(waved,)), wave_bias),
        "learned table": Position(looked_up, table, learned=lambda h, d: (h, reach), logit_scale=0.8),
        "two tables": Position(
            two_biases, lambda d, q, t: wave_bias(d, q, t) + table(d, q, t),
            learned=lambda h, d: (h, reach), logit_scale=0.8,
        ),
        "two regions": Position(
            lambda ctx, t: Terms(regions=(near, far), logit_scale=1.1), claims=halves, logit_scale=1.1, causal_only=True
        ),
        "window": Position(lambda ctx, t: Terms(visible=band, logit_scale=1.2), hidden=outside, logit_scale=1.2),
        "rows": Position(of_rows, rotated=True, causal_only=True),
        "content": Position(by_content, content, learned=lambda h, d: (reach, d)),
        "key bias, wave and window": Position(
            mixture, lambda d, q, t: line(d, q, t) + wave_bias(d, q, t), hidden=outside, logit_scale=1.25,
            causal_only=True,
        ),
        "chunks": Position(
            lambda ctx, t: Terms(regions=tuple(map(Region, chunked)), logit_scale=1.1), logit_scale=1.1,
            claims=(lambda i, j: i // 5 == j // 5, lambda i, j: i // 5 == j // 5 + 1, lambda i, j: i // 5 > j // 5 + 1),
            causal_only=True,
        ),
        "first keys": Position(
            lambda ctx, t: Terms(regions=tuple(map(Region, first))),
            claims=(lambda i, j: i - j < WINDOW, lambda i, j: (i - j >= WINDOW) & (j < 3)), causal_only=True,
        ),
        "split by row": Position(
            lambda ctx, t: Terms(regions=tuple(map(Region, by_row))),
            claims=(lambda i, j: (i < TRAINED).expand_as(i - j), lambda i, j: (i >= TRAINED).expand_as(i - j)),
            causal_only=True,
        ),
        "sink": Position(
            lambda ctx, t: Terms(sink=t, logit_scale=1.3), learned=lambda h, d: (h,), sink=True, logit_scale=1.3
        ),
        "scaled rows": Position(scaled, wave_bias, row_scale=growing, logit_scale=0.9),
        "values": Position(added, to_values=lambda t, d: t[clipped(d)], learned=lambda h, d: (reach, d)),
        "regions with a bias": Position(
            lambda ctx, t: Terms(bias=(waved,), regions=(near, far)), wave_bias, claims=halves, causal_only=True
        ),
        "regions within a window": Position(
            lambda ctx, t: Terms(regions=two_regions(3), visible=band),
            hidden=outside, claims=(lambda i, j: i - j < 3, lambda i, j: i - j >= 3), causal_only=True,
        ),
    }  # fmt: skip


ALL = tuple(positions_of(4, 8))
BOTH_WAYS = tuple(name for name, position in positions_of(4, 8).items() if not position.causal_only)


@dataclass
class Problem:
    """One call: shapes, padding, attention mask.

    Attributes:
        real: ``[batch, key]``, false at padding; None where all tokens are real.
        document: ``[batch, key]``, the text each token belongs to; None for one text.
        mask_kind: ``"none"``, ``"bool"`` or ``"float"``: how a backend of transformers would hand the mask over.
        unwritten: keys of a static cache behind the last query.
        mask_window: tokens that the mask lets a query see, itself included, on either side; None for all.
    """

    limit: ClassVar = 1e-5
    """Largest difference of float32 from float64 results that counts as rounding, up to a few hundred keys."""

    kind: str
    queries: int = 29
    keys: int | None = None
    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    causal: bool = True
    real: Tensor | None = None
    document: Tensor | None = None
    mask_kind: str = "none"
    unwritten: int = 0
    mask_window: int | None = None
    dtype: torch.dtype = torch.float32
    dropout: float = 0.0
    seed: int = 0
    grad: bool = False
    position: Position = field(init=False)

    def __post_init__(self) -> None:
        self.keys = self.keys or self.queries
        self.position = positions_of(self.heads, self.head_dim)[self.kind]
        draw = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw).to(self.dtype).requires_grad_(self.grad)

        regions = self.position.regions
        self.q = [normal(self.batch, self.heads, self.queries, self.head_dim) for _ in range(regions)]
        self.k = [normal(self.batch, self.kv_heads, self.keys, self.head_dim) for _ in range(regions)]
        self.v = normal(self.batch, self.kv_heads, self.keys, self.head_dim)
        shape = self.position.learned
        self.learned = None
        if shape is not None:
            table = torch.randn(*shape(self.heads, self.head_dim), generator=draw)
            self.learned = table.requires_grad_(self.grad)
        self.scaling = self.head_dim**-0.5

    @property
    def leaves(self) -> list[Tensor]:
        """Tensors that have a gradient."""
        return [*self.q, *self.k, self.v] + ([] if self.learned is None else [self.learned])

    @property
    def newest(self) -> int:
        """Index of the last query among the keys."""
        return self.keys - self.unwritten - 1

    def key_positions(self) -> Tensor:
        """Counted on real tokens; documents start over."""
        if self.document is not None:
            rows = [[sum(d == row[j] for d in row[:j]) for j in range(self.keys)] for row in self.document.tolist()]
            return torch.tensor(rows)
        if self.real is not None:
            return torch.tensor(
                [[max(0, sum(row[: j + 1]) - 1) for j in range(self.keys)] for row in self.real.tolist()]
            )
        return torch.arange(self.keys)[None]

    def query_positions(self) -> Tensor:
        return self.key_positions()[:, self.newest + 1 - self.queries : self.newest + 1]

    def seen(self) -> Tensor:
        """Visible pairs by order, padding and documents, ``[batch or 1, 1, query, key]``."""
        i = torch.arange(self.newest + 1 - self.queries, self.newest + 1)[:, None]
        j = torch.arange(self.keys)[None]
        seen = ((j <= i) if self.causal else (j <= self.newest).expand(len(i), -1))[None]
        if self.mask_window is not None:
            seen = seen & (i - j < self.mask_window) & (j - i < self.mask_window)
        if self.real is not None:
            seen = seen & self.real[:, None, :].bool()
        if self.document is not None:
            seen = seen & (self.document[:, i[:, 0], None] == self.document[:, None, :])
        return seen[:, None]

    def mask(self) -> Tensor | None:
        if self.mask_kind == "none":
            return None
        seen = self.seen()
        if self.mask_kind == "bool":
            return seen
        return torch.zeros(seen.shape, dtype=self.dtype).masked_fill(~seen, torch.finfo(self.dtype).min)

    def call(self) -> AttentionCall:
        """As an adapter would hand it to the engine."""
        contiguous = self.real is None and self.document is None
        ctx = PositionContext(self.query_positions(), self.key_positions(), self.causal, contiguous)
        terms = self.position.terms(ctx, self.learned)
        return AttentionCall(tuple(self.q), tuple(self.k), self.v, terms, ctx, self.mask(), self.scaling, self.dropout)

    def engine(self) -> Tensor:
        return self.attend(self.call())

    @staticmethod
    def attend(call: AttentionCall) -> Tensor:
        return dispatch.attend(call)

    def route(self) -> str:
        return dispatch.route(self.call())

    def expected(self, *, kept: Tensor | float = 1.0, leaves: list[Tensor] | None = None) -> Tensor:
        """The formula's answer, float64; on ``leaves`` (float64) if gradients are wanted."""
        leaves = [t.detach().double() for t in self.leaves] if leaves is None else leaves
        regions = self.position.regions
        q, k, v = leaves[:regions], leaves[regions : 2 * regions], leaves[2 * regions]
        learned = leaves[2 * regions + 1] if self.learned is not None else None
        distance = self.query_positions()[:, :, None] - self.key_positions()[:, None, :]
        seen = self.seen()
        if self.position.hidden is not None:
            seen = seen & ~self.position.hidden(distance)[:, None]
        here, there = self.query_positions()[:, :, None], self.key_positions()[:, None, :]
        claims = [claim(here, there)[:, None] for claim in self.position.claims] or None
        bias = self.position.bias(distance, q[0], learned)
        settings = {"scaling": self.scaling, "logit_scale": self.position.logit_scale, "kept": kept}
        if not self.position.rotated:
            by_row, to_values = self.position.row_scale, self.position.to_values
            return mix(
                q, k, v, seen, bias=bias, claims=claims, **settings,
                row_scale=1.0 if by_row is None else by_row(self.query_positions())[..., None],
                sink=learned if self.position.sink else None,
                table=None if to_values is None else to_values(learned, distance).expand(self.batch, -1, -1, -1),
            )  # fmt: skip
        rows = []
        for i in range(self.queries):
            samples = []
            for b in range(self.batch):
                here = self.query_positions()[b % len(self.query_positions()), i : i + 1]
                there = self.key_positions()[b % len(self.key_positions())]
                length = max(int(here) + 1, TRAINED)
                one = slice(b, b + 1)
                of_row = kept if isinstance(kept, float) else kept[one, :, i : i + 1]
                samples.append(mix(
                    [rotate(q[0][one, :, i : i + 1], here, length)], [rotate(k[0][one], there, length)], v[one],
                    seen[b % len(seen)][None, :, i : i + 1], **(settings | {"kept": of_row}),
                ))  # fmt: skip
            rows.append(torch.cat(samples))
        return torch.cat(rows, dim=2)

    def deviation(self, mixed: Tensor | None = None) -> float:
        """Largest difference of attention output, by default the engine's, from the formula.

        Rows of padding may hold anything finite: nobody reads them.
        """
        mixed = (self.engine() if mixed is None else mixed).detach()
        assert torch.isfinite(mixed).all()
        difference = (mixed.double() - self.expected()).abs()
        if self.real is not None:
            read = self.real[:, -self.queries :].bool()[:, None, :, None]
            difference = difference.masked_fill(~read, 0.0)
        return float(difference.max())

    def gradient_deviations(self) -> list[float]:
        """Largest difference of each gradient, relative to the largest entry of the formula's, of rows read."""
        weight = torch.randn(self.expected().shape, generator=torch.Generator().manual_seed(1))
        if self.real is not None:
            weight = weight * self.real[:, None, -self.queries :, None]
        ours = torch.autograd.grad((self.engine() * weight).sum(), self.leaves)
        exact = [t.detach().double().requires_grad_() for t in self.leaves]
        theirs = torch.autograd.grad((self.expected(leaves=exact) * weight.double()).sum(), exact)
        pairs = zip(ours, theirs, strict=True)
        return [float((o.double() - t).abs().max() / t.abs().max().clamp(min=1e-9)) for o, t in pairs]


def rotate(x: Tensor, positions: Tensor, length: int) -> Tensor:
    """Channels m and m + n of ``x [batch, heads, position, 2n]`` as one complex number, times e^(i ω_m position)."""
    n = x.shape[-1] // 2
    frequencies = torch.tensor(row_frequencies(length, n), dtype=torch.float64)
    rotated = torch.complex(x[..., :n], x[..., n:]) * torch.exp(1j * positions.double()[:, None] * frequencies)
    return torch.cat((rotated.real, rotated.imag), dim=-1)


def tokens(*rows: Iterable[int]) -> Tensor:
    """One row a sample: 1 for a real token and 0 for padding, or the number of its document."""
    return torch.tensor([list(row) for row in rows])


LEFT = tokens([0] * 11 + [1] * 29, [1] * 40)
RIGHT = tokens([1] * 29 + [0] * 11, [1] * 40)
DOCUMENTS = tokens([0] * 13 + [1] * 27, [0] * 5 + [1] * 20 + [2] * 15)
