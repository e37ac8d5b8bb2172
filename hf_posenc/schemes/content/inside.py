"""What biases read inside a layer alone: its hidden states, or its projections of content and of positions."""

from __future__ import annotations

from torch import Tensor, nn

from hf_posenc.core.geometry import Geometry
from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.errors import OutsideModel


class PositionProjections(nn.Module):
    """A layer's own projections of relative positions, as the first DeBERTa has them (``share_att_key: false``).

    There is no bias of the keys, which would cancel in the softmax.
    """

    def __init__(self, geometry: Geometry, active: list[str]) -> None:
        super().__init__()
        self.head_dim = geometry.head_dim
        if "c2p" in active:
            self.to_key = nn.Linear(geometry.width, geometry.kv_heads * geometry.head_dim, bias=False)
        if "p2c" in active:
            self.to_query = nn.Linear(geometry.width, geometry.heads * geometry.head_dim)

    def key(self, x: Tensor) -> Tensor:
        """``[n, width]`` to ``[kv_heads, n, head_dim]``."""
        return self.to_key(x).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)

    def query(self, x: Tensor) -> Tensor:
        """``[n, width]`` to ``[heads, n, head_dim]``."""
        return self.to_query(x).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)


def only_inside(scheme: str, needs: str) -> BlockBias:
    """The bias of a scheme outside a model, which raises `OutsideModel` when its values are computed."""

    def of_block(block: Block) -> object:
        raise OutsideModel(
            f"Scheme {scheme!r} reads {needs}, and was called outside a layer. Call it in a patched model, or set "
            "these fields of the PositionContext."
        )

    return BlockBias(of_block)  # type: ignore[arg-type]  # it never returns
