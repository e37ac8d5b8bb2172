"""Target of a plot: the scheme of one layer, with the model's position table and projections where it has them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext, Projections
from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.base import Scheme, implements


@dataclass(frozen=True)
class Target:
    """A scheme to plot.

    Attributes:
        label: name in the plot.
        scheme: scheme of one layer.
        table: the model's position table, ``[rows, width]``, if it has one.
        projections: of the layer, if there is a model.
        layer: index of the layer.
    """

    label: str
    scheme: Scheme
    table: Tensor | None = None
    projections: Projections | None = None
    layer: int = 0

    @property
    def geometry(self) -> Geometry:
        """Shapes and lengths that the scheme was built for."""
        return self.scheme.geometry

    def has(self, *hooks: str) -> bool:
        """Whether the scheme implements one of these hooks."""
        return any(implements(self.scheme, hook) for hook in hooks)

    @property
    def reads_table(self) -> bool:
        """Whether the embeddings are rows of the model's own table."""
        return self.table is not None and (not self.scheme.replaces_host or self.scheme.keeps_table)

    def context(self, positions: Tensor, hidden: Tensor | None = None) -> PositionContext:
        """Build the context of an attention call; all tokens at ``positions [1, token]`` are queries and keys."""
        return PositionContext(
            positions, positions, causal=self.geometry.causal,
            contiguous=bool((positions.diff() == 1).all()), hidden=hidden,
            projections=self.projections, layer=None if self.projections is None else self.layer,
        )  # fmt: skip


def position_range(length: int, start: int = 0) -> Tensor:
    """Return positions ``start … start + length − 1``, ``[1, length]``."""
    return torch.arange(start, start + length)[None]
