"""Scale-invariant attention: logits spread and sink with the distance, so that every range of distances counts alike.

    z'[i, j] = a_Δ z[i, j] + m_Δ          a_Δ² = 2 ln(Δ / τ + 1) + 1,   m_Δ = 1 − a_Δ²,   Δ = i − j
                                          z: q_i · k_j / √d; a composed bias is added to z'

If logits z are drawn from N(0, 1), the expected weight at distance Δ is proportional to 1 / (Δ/τ + 1). All keys from Δ
to 10 Δ together then have the same weight as those from 10 Δ to 100 Δ. The growing spread gives that weight to few
keys. Nearby tokens (Δ ≪ τ) keep their logits: a = 1 and m = 0 at distance 0, where α = β = √e in the paper's terms.

For training from scratch, with norms of queries and keys. The authors combine it with RoPE without its slowest pairs,
here ``"proportional+scale_invariant"``; on plain RoPE they find it poor. Do not add another temperature by length.
Experimental: published for models of 162M and 304M parameters. The source does not define later keys in an encoder.

Anson, Wang, Aitchison 2025, "Scale-invariant Attention", arXiv:2505.17083, sections 3 and 4.
"""

from __future__ import annotations

from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import Positive
from hf_posenc.schemes.registry import register_scheme


@register_scheme("scale_invariant", paper="2505.17083")
class ScaleInvariant(Scheme):
    """Logits scaled and lowered by the logarithm of the distance, from ``tau`` (10) tokens on. Experimental.

    Works on top of any positions; for training from scratch.
    """

    formula = r"""
    z'_{ij} &= a_\Delta z_{ij} + m_\Delta \\
    a_\Delta^2 &= 2 \ln(\Delta / \tau + 1) + 1, \quad m_\Delta = 1 - a_\Delta^2, \quad \Delta = i - j
    """

    replaces_host = False
    needs_causal = True
    later_keys = False

    def __init__(self, geometry: Geometry, *, tau: Positive = 10.0) -> None:
        super().__init__(geometry)
        self.tau = tau

    def bias(self, ctx: PositionContext) -> BlockBias:
        """(a − 1) z + m for a block of queries."""
        return BlockBias(self.of_block)

    def of_block(self, block: Block) -> Tensor:
        """The bias (a − 1) z + m, ``[batch, heads, n, key]``."""
        squared = block.of_distance(self.squared)
        return (squared.sqrt() - 1) * block.scores + (1 - squared)

    def squared(self, distance: Tensor) -> Tensor:
        """a² of distances ``[…]``, ``[1, …]``; later keys, which are hidden, get the value of distance 0."""
        return 2 * (distance.clamp(min=0).float() / self.tau).log1p()[None] + 1
