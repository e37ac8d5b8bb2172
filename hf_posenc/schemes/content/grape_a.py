"""GRAPE-A: a linear penalty on distance, at a rate that the query and the key set themselves.

    score[h, i, j] = q_i · k_j / √d − (i − j) ω_h (g_i + g'_j)
    g_i = ln(1 + e^(v_h · q_i / √d)),   g'_j = ln(1 + e^(u_h · k_j / √d)),   ω_h = ln(1 + e^(a_h)) m_h

Of the paper's two groups, this is the additive one: a unipotent action on queries and keys with one extra coordinate,
the translation by (i − j). Constant gates give ALiBi, whose slopes m_h set the scale. The gates read the queries and
keys of the layer, so a cache stores nothing else.

Learned: u and v, normalised to length 1 when used, and a, with softplus(a) = 1 at first. Gates begin near ln 2. Do not
compose it with a rotation: gates would read rotated queries and keys, and depend on absolute positions. It is for
decoders only, and experimental: published for models of 350M and 770M parameters, trained from scratch with norms of q
and k.

Zhang, Chen, Liu, Qin, Yuan, Xu, Yuan, Gu, Yao 2025, "Group Representational Position Encoding", arXiv:2512.07805,
section 4; initial values as in github.com/model-architectures/GRAPE.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from hf_posenc.core.constants import constant
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.alibi import code_slopes
from hf_posenc.schemes.registry import register_scheme

Gates = Literal["both", "query", "key"]
INVERSE_SOFTPLUS_OF_1 = math.log(math.e - 1)


@register_scheme("grape_a", aliases=("grape",), paper="2512.07805")
class GrapeA(Scheme):
    """A learned penalty on distance at a rate of query and key, one per head and layer. Experimental.

    ``gates`` chooses whether queries, keys or both set the rate. For training from scratch.
    """

    formula = r"""
    \mathrm{score}_{hij} &= \frac{q_i \cdot k_j}{\sqrt d} - (i - j) \, \omega_h \, (g_i + g'_j) \\
    g_i &= \ln(1 + e^{v_h \cdot q_i / \sqrt d}), \quad g'_j = \ln(1 + e^{u_h \cdot k_j / \sqrt d}) \\
    \omega_h &= \ln(1 + e^{a_h}) \, m_h \quad \text{$m_h$: slopes of ALiBi, } |u_h| = |v_h| = 1
    """

    shared = False
    needs_causal = True
    later_keys = False

    def __init__(self, geometry: Geometry, *, gates: Gates = "both") -> None:
        super().__init__(geometry)
        self.slopes = tuple(code_slopes(geometry.heads))
        self.a = nn.Parameter(torch.empty(geometry.heads))
        shape = geometry.heads, geometry.head_dim
        self.v = nn.Parameter(torch.empty(shape)) if gates != "key" else None
        self.u = nn.Parameter(torch.empty(shape)) if gates != "query" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw u and v, and reset a."""
        nn.init.constant_(self.a, INVERSE_SOFTPLUS_OF_1)
        for direction in (self.v, self.u):
            if direction is not None:
                nn.init.normal_(direction, std=self.geometry.head_dim**-0.5)

    def bias(self, ctx: PositionContext) -> BlockBias:
        """The penalty for a block of queries."""
        return BlockBias(self.of_block, reads_scores=False)

    def of_block(self, block: Block) -> Tensor:
        """−(i − j) ω (g + g'), ``[batch, heads, n, key]``, float32; later keys, which are hidden, get 0."""
        gates = [gate(self.v, block.query)[..., None]] if self.v is not None else []
        gates += [gate(self.u, block.key)[:, :, None]] if self.u is not None else []
        distance = block.distance.clamp(min=0).float()[:, None]
        slopes = constant(self.slopes, torch.float32, distance.device)
        return -distance * (softplus(self.a.float()) * slopes)[:, None, None] * sum(gates[1:], gates[0])


def gate(direction: Tensor, x: Tensor) -> Tensor:
    """softplus(u_h · x / √d), ``[batch, heads, token]``, for ``x [batch, heads or kv_heads, token, head_dim]``."""
    directions = normalize(direction.float(), dim=-1).unflatten(0, (x.shape[1], -1))  # [kv_heads, group, head_dim]
    return softplus((x @ directions.mT * x.shape[-1] ** -0.5).transpose(-1, -2).flatten(1, 2))
