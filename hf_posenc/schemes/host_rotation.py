"""The model's own positions, as they are: its rotation, linear bias or position table, with any scaling it has already.

Remaps, masks and temperatures work on top of them, and are composed with this scheme automatically. Its own name is for
layers that another scheme leaves alone, as in ``layers={"::2": "host"}``.

Composed with a scheme that stretches a rotation, as in ``"host+yarn"``, it makes that scheme start from the model's own
frequencies instead of unscaled ones:

    ω'_m = stretched(ω_m)        ω_m: as the model has them, with any scaling that its configuration describes
    score' = a · a' · score      a: the temperature of the model's own scaling, a': that of the scheme

Schemes such as YaRN tell fast pairs from slow ones by the number of rotations in the trained length; here these are
rotations by ω_m. The trained length is by default the one that the model reaches with its own scaling
(``max_position_embeddings``). On a model without scaling, ``"host+yarn"`` equals ``"yarn"``.
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
    """Each layer keeps the rotation or the linear bias that it has, or none, and the model its position table."""

    formula = r"""
    \omega'_m &= \mathrm{stretched}(\omega_m) \\
    \mathrm{score}' &= a \cdot a' \cdot \mathrm{score}
    """

    replaces_host = False

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        has_slopes = geometry.slopes is not None
        unused = {"rotation": has_slopes or geometry.on_host, "bias": not has_slopes}
        self.idle = frozenset(hook for hook, is_unused in unused.items() if is_unused)

    def rotation(self) -> Rotation | None:
        rotary = None if self.geometry.on_host else self.geometry.rotary
        return None if rotary is None else rotary.rotation

    def bias(self, ctx: PositionContext) -> KeyBias | ToeplitzBias | None:
        slopes = self.geometry.slopes
        return None if slopes is None else linear_bias(ctx.constant(slopes), ctx, ("bias of keys", slopes))

    def logit_scale(self) -> float:
        rotary = self.geometry.rotary
        return 1.0 if rotary is None else rotary.logit_scale

    @property
    def keeps_table(self) -> bool:
        return self.geometry.table is not None

    @property
    def unchanged_below(self) -> int:
        """The whole target length; the schemes composed with it say where outputs change."""
        return self.geometry.target_length
