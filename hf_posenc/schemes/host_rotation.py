"""The model's own positions, as they are: its rotation, linear bias or position table, with any scaling it has already.

Remaps, masks and temperatures work on top of them and bring this scheme along by themselves. Under its own name it
stands for layers that another scheme leaves alone, as in ``layers={"::2": "host"}``.
"""

from __future__ import annotations

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.core.terms import KeyBias, ToeplitzBias
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.bias.alibi import linear_bias
from hf_posenc.schemes.registry import register_scheme


@register_scheme("host", aliases=("own", "unchanged"), zero_shot=True)
class HostRotation(Scheme):
    """Each layer keeps the rotation or the linear bias that it has, or none."""

    replaces_host = False

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.idle = frozenset(("bias",)) if geometry.slopes is None else frozenset(("rotation",))

    def rotation(self) -> Rotation | None:
        rotary = self.geometry.rotary
        return None if rotary is None else rotary.rotation

    def bias(self, ctx: PositionContext) -> KeyBias | ToeplitzBias | None:
        slopes = self.geometry.slopes
        return None if slopes is None else linear_bias(ctx.constant(slopes), ctx, ("bias of keys", slopes))

    def logit_scale(self) -> float:
        rotary = self.geometry.rotary
        return 1.0 if rotary is None else rotary.logit_scale

    @property
    def unchanged_below(self) -> int:
        return self.geometry.target_length
