"""Biases that need the hidden states or projections of a layer, and raise `OutsideModel` where there is none."""

from __future__ import annotations

from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.errors import OutsideModel


def only_inside(scheme: str, needs: str) -> BlockBias:
    """The bias of a scheme outside a model, which raises `OutsideModel` when its values are computed."""

    def of_block(block: Block) -> object:
        raise OutsideModel(
            f"Scheme {scheme!r} reads {needs}, and was called outside a layer. Call it in a patched model, or set "
            "these fields of the PositionContext."
        )

    return BlockBias(of_block)  # type: ignore[arg-type]  # it never returns
