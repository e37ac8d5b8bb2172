"""FoX (Forgetting Transformer): a learned gate per token; scores decay by the product of the gates in between.

    score[i, j] = q_i · k_j / √d + Σ ln f_t over t = j+1 … i          f_t = σ(w_h · x_t + b_h),  one w and b per head

With c the cumulative sum of ln f, the sum is c_i − c_j. c_i is the same for all keys of a query and cancels in the
softmax, so the bias depends only on the key. A constant f is ALiBi with the slope −ln f. The cache stores ln f with
each key.

An encoder has two gates per head. The second is for later keys: Σ ln r_t over t = i+1 … j for j > i. With
``bidirectional=False`` the first gate serves both directions.

Learned: w, drawn from N(0, 0.02²), and b; training is needed. A large ``bias_init`` makes the decay small and starts
close to the positions it is composed with (``"rope+fox"``).

Lin, Nikishin, He, Courville 2025, "Forgetting Transformer", arXiv:2503.02130, section 3.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.core.terms import Block, BlockBias, KeyBias
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.content.inside import only_inside
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.rotary import RoPE

Parametrisation: TypeAlias = Literal["logsigmoid", "neg_softplus"]
STD = 0.02


@register_scheme("fox", aliases=("forgetting", "ddalibi"), paper="2503.02130")
class Fox(Scheme):
    """A learned forget gate per head and token, which sets how fast attention decays. Defined at every length.

    ``bias_init`` is the initial logit of the gates: f = σ(bias_init). ``param="neg_softplus"`` is the same function of
    the negated projection, as CABLE writes it. ``with_rope`` also rotates queries and keys.
    """

    formula = r"""
    \mathrm{score}_{ij} &= \frac{q_i \cdot k_j}{\sqrt d} + \sum_{t = j + 1}^{i} \ln f_t \\
    f_t &= \sigma(w_h \cdot x_t + b_h) \quad \text{one $w$ and $b$ per head}
    """

    shared = False

    later_keys = False

    def __init__(
        self,
        geometry: Geometry,
        *,
        param: Parametrisation = "logsigmoid",
        bias_init: float = 0.0,
        with_rope: bool = False,
        bidirectional: bool | None = None,
    ) -> None:
        super().__init__(geometry)
        if bidirectional and geometry.causal:
            raise OptionOutOfRange(
                "bidirectional=True asks for a gate on later tokens, but a decoder sees none. Leave it out."
            )
        self.sign = 1.0 if param == "logsigmoid" else -1.0
        self.bias_init = bias_init
        self.rope = RoPE(geometry).rotation() if with_rope else None
        self.idle = frozenset() if with_rope else frozenset({"rotation"})
        self.directions = 2 if bidirectional or (bidirectional is None and not geometry.causal) else 1
        self.gate = nn.Linear(geometry.width, self.directions * geometry.heads)

    def reset_parameters(self) -> None:
        """Redraw the projection, N(0, 0.02²), and set its bias so that f is σ(``bias_init``)."""
        nn.init.normal_(self.gate.weight, std=STD)
        nn.init.constant_(self.gate.bias, self.sign * self.bias_init)

    def rotation(self) -> Rotation | None:
        """RoPE's rotation if ``with_rope`` is set."""
        return self.rope

    def extra_key_channels(self, ctx: PositionContext) -> Tensor | None:
        """ln f of new tokens, ``[batch, kv_heads, query, directions · heads of a key head]``; None outside a model."""
        if ctx.hidden is None:
            return None
        kv_heads = self.geometry.kv_heads
        logits = self.gate(ctx.hidden).float().unflatten(-1, (self.directions, kv_heads, -1))
        return nn.functional.logsigmoid(self.sign * logits).permute(0, 3, 1, 2, 4).flatten(3)

    def bias(self, ctx: PositionContext) -> KeyBias | BlockBias:
        """In a decoder the key bias −c, ``[batch, heads, key]``; in an encoder a bias of blocks of queries."""
        if ctx.extra_key_channels is None:
            return only_inside(self.record.name, "the gates of a layer's tokens")
        sums = self.sums(ctx)
        if not ctx.causal:
            return BlockBias(partial(both_sides, sums[0], sums[-1]), reads_scores=False)
        return KeyBias(-sums[0])

    def sums(self, ctx: PositionContext) -> Tensor:
        """c, the sum of ln f up to every key, ``[directions, batch, heads, key]``, in float64; padding adds 0."""
        log_gates = ctx.extra_key_channels.transpose(-1, -2).contiguous()  # type: ignore[union-attr]  # casts twice as fast
        gates = ctx.exact(log_gates).unflatten(2, (self.directions, -1))
        if ctx.real_keys is not None:
            unwritten = gates.shape[-1] - ctx.real_keys.shape[1]  # of a static cache
            gates = gates * nn.functional.pad(ctx.real_keys, (0, unwritten))[:, None, None, None]
        return gates.movedim(2, 0).flatten(2, 3).cumsum(-1)


def both_sides(before: Tensor, after: Tensor, block: Block) -> Tensor:
    """c_i − c_j for earlier keys, c'_j − c'_i for later keys, from the sums c and c' ``[batch, heads, key]``.

    In an encoder, queries and keys are the same tokens. Both sums are shifted to the block's first query before they
    are rounded.
    """
    start = block.rows.start or 0
    first = slice(start, start + 1)
    before, after = ((c - c[..., first]).float() for c in (before, after))
    rows = slice(start, start + block.query.shape[2])
    to_earlier = before[..., rows, None] - before[..., None, :]
    to_later = after[..., None, :] - after[..., rows, None]
    return torch.where(block.distance[:, None] >= 0, to_earlier, to_later)
