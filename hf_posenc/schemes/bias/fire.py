"""FIRE: a small network maps the distance, relative to the position of the query, to a bias for each head.

    score[h, i, j] = q_i · k_j / √d + f(ψ(i − j) / (ψ(max(i, τ)) + ε))_h          ψ(x) = ln(|c| x + 1)

f: 1 → width → heads with ReLU; c and τ are trained with it. At every sequence length the fraction stays within 0 … 1,
the range on which f was trained. Only the query's own position enters the denominator, so cached sequences can be
continued. In an encoder, all queries see the L unpadded tokens of their sequence: it has |i − j| and max(L − 1, τ).

Li et al. 2023, "Functional Interpolation for Relative Positions Improves Long Context Transformers", arXiv:2310.04418,
section 4; ε and the learned multiplier of τ as in the code of DAPE (arXiv:2405.14722). The encoder's denominator is
ours: the paper has decoders only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.core.tracing import is_captured, is_traced
from hf_posenc.schemes.attention_scale.logn import keys_seen
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import Positive, PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.weights import LinearWeights

FEW = 1 << 13  # values; up to so many, evaluating all units is faster than finding those to leave out
AHEAD = 256  # distances that a kept table has in advance
Units = tuple[Tensor, Tensor]
AT_ONCE = 1 << 16  # pairs at a time: the values of all units then stay in the processor's cache, in half the time


@register_scheme("fire", paper="2310.04418")
class FIRE(Scheme):
    """A trained function of the relative distance, by default one per layer. Train after patching.

    ``width`` is the width of the hidden layer; ``c`` and ``tau`` are the initial values of ψ's parameter and of τ.
    """

    formula = r"""
    \mathrm{score}_{hij} &= \frac{q_i \cdot k_j}{\sqrt d}
      + f \left( \frac{\psi(i - j)}{\psi(\max(i, \tau)) + \varepsilon} \right)_{\!h} \\
    \psi(x) &= \ln(|c| \, x + 1)
    """

    later_keys = False
    sharing_option = "share_layers"

    def __init__(
        self,
        geometry: Geometry,
        *,
        width: PositiveInt = 32,
        c: Positive = 0.1,
        tau: Positive = 512.0,
        eps: Positive = 1e-6,
        share_layers: bool = False,
    ) -> None:
        super().__init__(geometry)
        self.shared = share_layers
        self.initial_c, self.tau, self.eps = c, tau, eps
        self.c = nn.Parameter(torch.empty(1))  # one dimension, because FSDP2 shards along it
        self.multiplier = nn.Parameter(torch.empty(1))
        self.inner = LinearWeights(1, width)
        self.outer = LinearWeights(width, geometry.heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw the network, and reset c and τ to their initial values."""
        nn.init.constant_(self.c, self.initial_c)
        nn.init.ones_(self.multiplier)
        self.inner.reset_parameters()
        self.outer.reset_parameters()

    def bias(self, ctx: PositionContext) -> BlockBias:
        """Bias of a block of queries, ``[batch or 1, heads, n, key]``, float32, with gradients to all parameters."""
        even = ctx.steady and not is_traced()
        decodes = even and ctx.kept is not None and ctx.query_positions.shape[1] == 1
        if decodes and ctx.first is not None and ctx.device.type == "cpu":
            row = self.token_bias(ctx, ctx.first, ctx.key_positions.shape[1])[:, :, None]
            return BlockBias(lambda _: row, reads_scores=False)  # no `KeyBias`: f(0) counts where there is a sink
        reach = None if ctx.causal else keys_seen(ctx) - 1  # [batch or 1, query or 1]
        # A decoder sees no key beyond the start of the text, so that x ≤ 1 in every block.
        units = cache(partial(self.bent_units, 1.0)) if even and ctx.causal and not torch.is_grad_enabled() else None

        def of_block(block: Block) -> Tensor:
            farthest = block.query_positions if reach is None else reach
            if ctx.text_keys is not None:
                farthest = farthest[:, block.rows]
            if even:
                by_distance = self.numerator(block.distances)  # evaluated once for every distance
                return self.relative(block.at_pairs(by_distance)[None], farthest, units)
            return self.bias_at(block.distance, farthest)

        return BlockBias(of_block, reads_scores=False)

    def bias_at(self, distance: Tensor, reach: Tensor) -> Tensor:
        """Bias ``[batch or 1, heads, n, key]`` of ``distance [batch or 1, n, key]``.

        ``reach [batch or 1, n or 1]`` is the distance of each query's farthest key.
        """
        return self.relative(self.numerator(distance), reach)

    def relative(self, numerator: Tensor, reach: Tensor, units: Callable[[], Units] | None = None) -> Tensor:
        """`bias_at`, from ψ of the distance. ``units`` returns the `bent_units` that all blocks share, if they do."""
        threshold = (self.multiplier.float() * self.tau).abs()
        farthest = torch.maximum(reach.float(), threshold)[..., None]
        return self.network(numerator / (self.psi(farthest) + self.eps), units).transpose(0, 1)

    def numerator(self, distance: Tensor) -> Tensor:
        """ψ of distances of either sign, same shape."""
        return self.psi(distance.abs().float())

    def token_bias(self, ctx: PositionContext, position: int, keys: int) -> Tensor:
        """Bias ``[1, heads, keys]`` of a decoded token on the CPU; the cache keeps ψ of all distances."""
        memo: dict[str, Any] = ctx.once_per_text(("fire", *self.edition), dict)
        table: Tensor | None = memo.get("numerator")  # at falling distances, the last one 0
        if table is None or len(table) < keys:
            table = memo["numerator"] = self.numerator(torch.arange(keys + AHEAD, -1, -1, device=ctx.device))
            memo["numbers"] = float(self.c.abs()), float((self.multiplier.float() * self.tau).abs())
            memo["units"] = self.bent_units(1.0)
        (c, threshold), (kinks, out) = memo["numbers"], memo["units"]
        reach = math.log1p(c * max(position, threshold)) + self.eps
        x = table.narrow(0, len(table) - keys, keys)[None] / reach
        return (out @ torch.maximum(kinks, x))[None]

    def psi(self, x: Tensor) -> Tensor:
        """ln(|c| x + 1), for c of either sign."""
        return (self.c.float().abs() * x).log1p()

    def network(self, x: Tensor, units: Callable[[], Units] | None = None) -> Tensor:
        """f at ``x […]``, ``[heads, …]``."""
        flat = x.reshape(1, -1)
        if is_traced() or is_captured(flat) or flat.numel() <= FEW:
            inner = torch.addmm(self.inner.bias.float()[:, None], self.inner.weight.float(), flat).relu_()
            return torch.addmm(self.outer.bias.float()[:, None], self.outer.weight.float(), inner).view(-1, *x.shape)
        kinks, out = self.bent_units(flat.detach().amax()) if units is None else units()
        if torch.is_grad_enabled() or flat.numel() <= AT_ONCE:
            parts = [out @ torch.maximum(kinks, part) for part in flat.split(AT_ONCE, 1)]
            return torch.cat(parts, 1).view(-1, *x.shape)
        values, memory = flat.new_empty(len(out), flat.numel()), flat.new_empty(len(kinks), AT_ONCE)
        for part, output in zip(flat.split(AT_ONCE, 1), values.split(AT_ONCE, 1), strict=True):
            torch.mm(out, torch.maximum(kinks, part, out=memory[:, : part.shape[1]]), out=output)
        return values.view(-1, *x.shape)

    def bent_units(self, largest: Tensor | float) -> Units:
        """A smaller network that equals f up to the ``largest`` x: kinks ``[units, 1]`` and weights ``[heads, units]``.

        On 0 … largest most ReLUs are linear. Units that are active everywhere add up to one line, and units that are
        inactive everywhere vanish. Each of the few others has a kink at k = −s / w:

            ReLU(w x + s) = w max(x, k) + s for w > 0,    −w max(x, k) + w x for w < 0

        The maximum is one operation for all heads. Kinks below and beyond the interval give x and a constant.
        """
        weight, shift = self.inner.weight.float()[:, 0], self.inner.bias.float()
        # A copy: weights loaded from a file may be aligned differently in memory, and kernels then round differently.
        out, end = self.outer.weight.float().clone(), max(float(largest), 1.0)
        ends = torch.stack((shift, weight * end + shift)).detach()
        on, off = ends.amin(0) > 0, ends.amax(0) <= 0
        bends, rises = ~(on | off), weight > 0
        slope = out @ (weight * (on | bends & ~rises))
        level = out @ (shift * (on | bends & rises)) + self.outer.bias.float()
        kinks = torch.cat((-shift[bends] / weight[bends], weight.new_tensor([-1, 2 * end])))
        bend_weights = out[:, bends] * weight[bends].abs()
        return kinks[:, None], torch.cat((bend_weights, slope[:, None], level[:, None] / (2 * end)), dim=1)
