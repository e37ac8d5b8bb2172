"""The model's own positions, as they are: its rotation or its position table, with any scaling that it has already.

Remaps, masks and temperatures work on top of them and bring this scheme along by themselves. Under its own name it
stands for layers that another scheme leaves alone, as in ``layers={"::2": "host"}``.

Composed with a scheme that stretches a rotation, as in ``"host+yarn"``, it has that start from the model's own
frequencies in place of unscaled ones:

    ω'_m = stretched(ω_m)        ω_m: as the model has them, with any scaling that its configuration describes
    score' = a · a' · score      a: the temperature of the model's own scaling, a': that of the scheme

Numbers of rotations, by which YaRN and its like tell fast pairs from slow ones, are then those of ω_m within the
trained length, which is by default the length that the model reaches with its own scaling
(``max_position_embeddings``). On a model without scaling this is the scheme itself.
"""

from __future__ import annotations

from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import register_scheme


@register_scheme("host", aliases=("own", "unchanged"), zero_shot=True)
class HostRotation(Scheme):
    """Each layer keeps the rotation that it has, or none."""

    replaces_host = False

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.idle = frozenset({"rotation"} if geometry.on_host else ())

    def rotation(self) -> Rotation | None:
        rotary = None if self.geometry.on_host else self.geometry.rotary
        return None if rotary is None else rotary.rotation

    def logit_scale(self) -> float:
        rotary = self.geometry.rotary
        return 1.0 if rotary is None else rotary.logit_scale

    @property
    def unchanged_below(self) -> int:
        """All of the target length; what is composed with it says where outputs change."""
        return self.geometry.target_length
