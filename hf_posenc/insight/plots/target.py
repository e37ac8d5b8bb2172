"""What a picture is taken of: a scheme in one layer, and what of a model it reads besides."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_posenc.core.context import PositionContext, Projections
from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.base import Scheme, implements


@dataclass(frozen=True)
class Target:
    """A scheme to look at.

    Attributes:
        label: what the picture calls it.
        scheme: of one layer.
        table: the host's learned positions ``[rows, width]``, where it has them.
        projections: of the layer, where there is a model.
        layer: its number.
    """

    label: str
    scheme: Scheme
    table: Tensor | None = None
    projections: Projections | None = None
    layer: int = 0

    @property
    def geometry(self) -> Geometry:
        """Shapes and lengths the scheme was built for."""
        return self.scheme.geometry

    def has(self, *hooks: str) -> bool:
        """Whether the scheme has its own version of one of these hooks."""
        return any(implements(self.scheme, hook) for hook in hooks)

    @property
    def reads_table(self) -> bool:
        """Whether rows of the host's own table are its codes."""
        return self.table is not None and (not self.scheme.replaces_host or self.scheme.keeps_table)

    def context(self, positions: Tensor, hidden: Tensor | None = None) -> PositionContext:
        """An attention call of tokens at ``positions [1, token]``, all of them queries and keys."""
        return PositionContext(
            positions, positions, causal=self.geometry.causal,
            contiguous=bool((positions.diff() == 1).all()), hidden=hidden,
            projections=self.projections, layer=None if self.projections is None else self.layer,
        )  # fmt: skip


def counted(length: int, start: int = 0) -> Tensor:
    """Positions ``start … start + length − 1``, ``[1, length]``."""
    return torch.arange(start, start + length)[None]
