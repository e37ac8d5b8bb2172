"""Helpers for biases that read a layer's hidden states or projections, and so work only inside a model."""

from __future__ import annotations

from torch import Tensor, nn

from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.errors import OutsideModel


class PositionProjections(nn.Module):
    """A layer's own projections of relative positions, as in the first DeBERTa (``share_att_key: false``).

    The projection of keys has no bias, because it would cancel in the softmax.
    """

    def __init__(self, geometry: Geometry, active: list[str]) -> None:
        super().__init__()
        self.head_dim = geometry.head_dim
        if "c2p" in active:
            self.to_key = nn.Linear(geometry.width, geometry.kv_heads * geometry.head_dim, bias=False)
        if "p2c" in active:
            self.to_query = nn.Linear(geometry.width, geometry.heads * geometry.head_dim)

    def key(self, x: Tensor) -> Tensor:
        """Project ``[n, width]`` to keys ``[kv_heads, n, head_dim]``."""
        return self.to_key(x).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)

    def query(self, x: Tensor) -> Tensor:
        """Project ``[n, width]`` to queries ``[heads, n, head_dim]``."""
        return self.to_query(x).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)


def only_inside(scheme: str, needs: str) -> BlockBias:
    """The bias of a scheme outside a model; computing its values raises `OutsideModel`."""

    def of_block(block: Block) -> object:
        raise OutsideModel(
            f"Scheme {scheme!r} reads {needs}, and was called outside a layer. Call it in a patched model, or set "
            "these fields of the PositionContext."
        )

    return BlockBias(of_block)  # type: ignore[arg-type]  # it never returns
