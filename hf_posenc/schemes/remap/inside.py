"""Biases that need the hidden states or projections of a layer, and raise `OutsideModel` where there is none."""

from __future__ import annotations

from hf_posenc.core.terms import Block, BlockBias
from hf_posenc.errors import OutsideModel


def only_inside(scheme: str, needs: str) -> BlockBias:
    """The bias of a scheme outside a model, which raises `OutsideModel` when its values are computed."""

    def of_block(block: Block) -> object:
        raise OutsideModel(
            f"Scheme {scheme!r} reads {needs}, and there is no layer here. Ask a patched model, or give the context "
            "what an attention layer gives it."
        )

    return BlockBias(of_block)  # type: ignore[arg-type]  # it never returns
