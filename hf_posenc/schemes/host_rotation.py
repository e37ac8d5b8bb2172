"""The model's own rotation, from its configuration; remaps, masks and temperatures work on top of it."""

from __future__ import annotations

from hf_posenc.core.geometry import Geometry, HostRotary, Rotation
from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.base import Scheme


class HostRotation(Scheme):
    """Not chosen by name: part of every composition that keeps the rotation of its model."""

    record = SchemeRecord("host", title="The model's own rotation.")
    replaces_host = False

    def __init__(self, geometry: Geometry, rotary: HostRotary) -> None:
        super().__init__(geometry)
        self.rotary = rotary

    def rotation(self) -> Rotation:
        return self.rotary.rotation

    def logit_scale(self) -> float:
        return self.rotary.logit_scale

    @property
    def unchanged_below(self) -> int:
        return self.geometry.target_length
