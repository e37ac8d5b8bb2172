"""The model's own positions, as they are: its rotation or its position table, with any scaling that it has already.

Remaps, masks and temperatures work on top of them and bring this scheme along by themselves. Under its own name it
stands for layers that another scheme leaves alone, as in ``layers={"::2": "host"}``.
"""

from __future__ import annotations

from hf_posenc.core.geometry import Rotation
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import register_scheme


@register_scheme("host", aliases=("own", "unchanged"), zero_shot=True)
class HostRotation(Scheme):
    """Each layer keeps the rotation that it has, or none."""

    replaces_host = False

    def rotation(self) -> Rotation | None:
        rotary = self.geometry.rotary
        return None if rotary is None else rotary.rotation

    def logit_scale(self) -> float:
        rotary = self.geometry.rotary
        return 1.0 if rotary is None else rotary.logit_scale

    @property
    def unchanged_below(self) -> int:
        return self.geometry.target_length
