"""RePo: a small network reads positions from the hidden states, and RoPE rotates by them.

    score[h, i, j] = Σ_m Re[q_m k*_m e^(i ω_m (z_hi − z_hj))] / √d           ω_m = θ^(−2m / d)
    z_hi = w_h · r_i                        r_i = SiLU(W_g x_i) ⊙ W_c x_i,   ``share`` · width channels

x_i is the input of the layer's attention. Each head of each layer has positions of its own. They are real numbers, they
need not grow along the text, and they are not bounded. Order enters through the causal mask alone.

Learned: W_g, W_c and w, drawn from N(0, 0.02²), cut at 3σ. At first all positions are close to 0: the layer starts
without positions. The authors train further from OLMo 2, and keep RoPE in the first third of the layers, here
``layers={":5": "rope"}``. They define it for as many key heads as query heads. With grouped heads, here a group has the
positions of its key head.

Traps. Positions are computed in the dtype of the model: in bfloat16, a position above 256 is a multiple of 2. The
rotated product is computed as a bias of blocks of queries, so attention takes two products instead of one, and runs in
float32. A KV cache stores one more number for each key. ``"rope+repo"`` rotates by i + z.

Li, Zhao, Sproat 2025, "RePo: Language Models with Context Re-Positioning", arXiv:2512.14391; the released code,
``swigluex_multihead`` in github.com/SakanaAI/repo.

    hf-posenc check --model starter:llama --scheme repo --import examples/schemes/repo.py
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from hf_posenc.extend import (
    Base,
    Block,
    BlockBias,
    Fraction,
    Geometry,
    PositionContext,
    Rotary,
    Scheme,
    register_scheme,
)

STD = 0.02


@register_scheme("repo", aliases=("repositioning",), paper="2512.14391")
class RePo(Scheme):
    """RoPE at real-valued positions that each layer reads from its hidden states. For training. Any length.

    ``share`` is the width of the network as a fraction of the model's.
    """

    formula = r"""
    \mathrm{score}_{hij} &= \frac{1}{\sqrt d} \sum_m
      \mathrm{Re} \left[ q_m k^*_m e^{\mathrm{i} \omega_m (z_{hi} - z_{hj})} \right] \\
    z_{hi} &= w_h \cdot \left( \mathrm{SiLU}(W_g x_i) \odot W_c x_i \right)
    """

    shared = False

    def __init__(self, geometry: Geometry, *, share: Fraction = 0.125, base: Base | None = None) -> None:
        super().__init__(geometry)
        self.turn = Rotary(geometry, base=base).rotation()
        inner = max(1, int(share * geometry.width))
        self.gate = nn.Linear(geometry.width, inner, bias=False)
        self.content = nn.Linear(geometry.width, inner, bias=False)
        self.position = nn.Linear(inner, geometry.kv_heads, bias=False)

    def reset_parameters(self) -> None:
        """Redraw the network from N(0, 0.02²), cut at three standard deviations."""
        for layer in (self.gate, self.content, self.position):
            nn.init.trunc_normal_(layer.weight, std=STD, a=-3 * STD, b=3 * STD)

    def extra_key_channels(self, ctx: PositionContext) -> Tensor | None:
        """z of new tokens, ``[batch, kv_heads, query, 1]``; None outside a model."""
        if ctx.hidden is None:
            return None
        return self.position(silu(self.gate(ctx.hidden)) * self.content(ctx.hidden)).mT[..., None]

    def bias(self, ctx: PositionContext) -> BlockBias:
        """The product of rotated queries and keys minus the plain one, for a block of queries."""
        return BlockBias(partial(self.of_block, ctx), reads_scores=False)

    def of_block(self, ctx: PositionContext, block: Block) -> Tensor:
        """The bias ``[batch, heads, n, key]``: two products in one, of pairs beside rotated pairs."""
        z = ctx.exact(ctx.extra_key_channels)
        groups = block.query.shape[1] // z.shape[1]
        of_query = z[:, :, ctx.ahead :][:, :, block.rows].repeat_interleave(groups, 1)
        query = self.beside(block.query, of_query, sign=-1.0)
        key = self.beside(block.key, z[:, :, : block.key.shape[2]], sign=1.0)
        products = query.unflatten(1, (-1, groups)) @ key[:, :, None].mT
        return products.flatten(1, 2) * block.scaling

    def beside(self, x: Tensor, z: Tensor, *, sign: float) -> Tensor:
        """Channels ``[…, token, d]`` rotated by ``z […, token, 1]``, beside ``sign`` times the channels."""
        pairs = len(self.turn.frequencies)
        shape, at = ((2, pairs), -2) if self.turn.layout == "half" else ((pairs, 2), -1)
        real, imaginary = x[..., : 2 * pairs].unflatten(-1, shape).unbind(at)
        angle = z * torch.tensor(self.turn.frequencies, dtype=z.dtype, device=z.device)
        cos, sin = angle.cos().float(), angle.sin().float()
        turned = real * cos - imaginary * sin, real * sin + imaginary * cos
        return torch.cat((*turned, sign * real, sign * imaginary), dim=-1)
