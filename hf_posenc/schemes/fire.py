"""FIRE: a small network from the distance, as a fraction of how far the row can look, to a number for each head.

    score[h, i, j] = q_i · k_j / √d + f(ψ(i − j) / (ψ(max(i, τ)) + ε))_h          ψ(x) = ln(|c| x + 1)

f: 1 → width → heads with ReLU; c and τ are trained with it. However long the text, the fraction stays within 0 … 1:
what f learned of the trained length is read at every other. Only the query's own position enters the denominator, so
cached texts can go on. An encoder's rows all look over the L real tokens of their text: |i − j| and max(L − 1, τ).

Li et al. 2023, "Functional Interpolation for Relative Positions Improves Long Context Transformers", arXiv:2310.04418,
section 4; ε and the learned multiplier of τ as in the code of DAPE (arXiv:2405.14722). The encoder's denominator is
ours: the paper has decoders only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_posenc.geometry import Geometry
from hf_posenc.options import Positive, PositiveInt
from hf_posenc.positions import PositionContext
from hf_posenc.registry import register_scheme
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.logn import keys_seen
from hf_posenc.terms import Block, BlockBias


@register_scheme("fire", learned=True, paper="2310.04418")
class FIRE(Scheme):
    """A trained function of the relative distance, by default one a layer. Train after patching.

    ``width`` is the hidden layer's; ``c``, ``tau`` are where ψ and the threshold start.
    """

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
        self.shared = share_layers  # type: ignore[misc]
        self.first_c, self.tau, self.eps = c, tau, eps
        self.c = nn.Parameter(torch.empty(1))  # of one dimension: FSDP2 shards along it
        self.multiplier = nn.Parameter(torch.empty(1))
        self.inner = nn.Linear(1, width)
        self.outer = nn.Linear(width, geometry.heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the network anew, and put c and τ back to where they start."""
        nn.init.constant_(self.c, self.first_c)
        nn.init.ones_(self.multiplier)
        self.inner.reset_parameters()
        self.outer.reset_parameters()

    def bias(self, ctx: PositionContext) -> BlockBias:
        """Bias of a block of rows, ``[batch or 1, heads, n, key]``, float32, with gradients to all parameters."""
        reach = None if ctx.causal else keys_seen(ctx) - 1  # [batch or 1, 1]

        def of_block(block: Block) -> Tensor:
            return self.of(block.distance, block.query_positions if reach is None else reach)

        return BlockBias(of_block)

    def of(self, distance: Tensor, reach: Tensor) -> Tensor:
        """Bias ``[batch or 1, heads, n, key]`` of ``distance [batch or 1, n, key]``, in rows that look back by
        ``reach [batch or 1, n or 1]``."""
        threshold = (self.multiplier.float() * self.tau).abs()
        farthest = torch.maximum(reach.float(), threshold)[..., None]
        fraction = self.psi(distance.abs().float()) / (self.psi(farthest) + self.eps)
        return self.network(fraction).transpose(0, 1)

    def psi(self, x: Tensor) -> Tensor:
        """ln(|c| x + 1), whatever sign c has taken."""
        return (self.c.float().abs() * x).log1p()

    def network(self, x: Tensor) -> Tensor:
        """f at ``x […]``, ``[heads, …]``.

        Of one number, a hidden layer of ReLUs is a piecewise linear function: between two neighbouring kinks −b / w
        the same units are on. So each x is looked up among the kinks and costs one line a head instead of a hidden
        layer; exact, and with the gradients of the layers, because the lines are made of their weights. (On a kink
        itself a ReLU has two gradients; this may take the other one.)
        """
        weight, shift = self.inner.weight.float()[:, 0], self.inner.bias.float()
        kinks, on = _segments(weight.detach(), shift.detach())
        out = self.outer.weight.float()
        slopes, offsets = out @ (on * weight).T, out @ (on * shift).T + self.outer.bias.float()[:, None]
        flat = x.flatten()
        segment = torch.bucketize(flat.detach(), kinks)
        lines = [
            torch.addcmul(offset.index_select(0, segment), slope.index_select(0, segment), flat)
            for slope, offset in zip(slopes, offsets, strict=True)  # a head at a time: its lines are all it holds
        ]
        return torch.stack(lines).view(-1, *x.shape)


def _segments(weight: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Kinks of relu(weight · x + shift) in rising order, ``[unit]``, and which units are on before, between and after
    them, ``[unit + 1, unit]``."""
    never = torch.full_like(weight, torch.inf)
    kinks, order = torch.where(weight == 0, never, -shift / weight).sort()
    segment = torch.arange(len(weight) + 1, device=weight.device)[:, None]
    place = order.argsort()  # of each unit's kink: in segment s the first s kinks lie behind
    behind = segment > place
    on = torch.where(weight == 0, shift > 0, behind == (weight > 0))
    return kinks, on.to(weight.dtype)
