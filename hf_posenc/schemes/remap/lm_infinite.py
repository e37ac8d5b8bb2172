"""LM-Infinite: attend to the first few tokens and the nearest ones, with distances bounded by the window.

    query i sees  j < n_global        at distance n_local
                  i − j < n_local     at its true distance

It removes both causes of failure: distances beyond those of training, and more keys than in training. A dynamic cache
holds n_global + n_local − 1 keys.

Han, Wang, Peng, Xiong, Chen, Ji, Wang 2023, "LM-Infinite", arXiv:2308.16137, section 4;
github.com/Glaciohound/LM-Infinite. The optional attention to the top keys between the two is not part of this scheme.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import Band, Region, at_zero
from hf_posenc.schemes.options import NotNegativeInt, PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.remap.rerope import KeyCache, RotatesKeysByRegion


@register_scheme("lm_infinite", aliases=("lambda",), zero_shot=True, cache="copies", paper="2308.16137")
class LMInfinite(RotatesKeysByRegion):
    """The first ``n_global`` tokens (10) and the last ``n_local`` (default: the trained length). Zero-shot.

    ``key_cache="one"`` caches one copy of each key, and rotates the keys of the first tokens for each new token.
    """

    formula = r"""
    \text{query $i$ sees} \begin{cases}
    j < \mathtt{n\_global} & \text{at distance } \mathtt{n\_local} \\
    i - j < \mathtt{n\_local} & \text{at its true distance}
    \end{cases}
    """

    replaces_host = False
    needs_relative = True
    chooses_keys = True
    needs_causal = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        n_global: NotNegativeInt = 10,
        n_local: PositiveInt | None = None,
        key_cache: KeyCache = "copies",
    ) -> None:
        super().__init__(geometry, key_cache=key_cache)
        self.n_global = n_global
        self.n_local = geometry.trained_length if n_local is None else n_local

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """Near keys at their true distance; the first tokens at position 0, with queries at n_local."""
        near, far = Band(None, self.n_local), Band(self.n_local, None, keys_until=self.n_global)
        return Region(near), Region(far, self.at_edge, at_zero)

    def at_edge(self, positions: Tensor) -> Tensor:
        """Position of every query in the region of the first tokens."""
        return torch.full_like(positions, self.n_local)

    @property
    def kept_keys(self) -> tuple[int, int]:
        """The first tokens, and the near keys of the next token without its own."""
        return self.n_global, self.n_local - 1

    @property
    def unchanged_below(self) -> int:
        return self.n_local
