"""Option `key_cache`: a KV cache with a copy of each key for every region that rotates it differently, or with one.

    R(p') k = R(p' − p) R(p) k        p, p': positions of a key in two regions

Rotations compose, so the other copies follow from one. With one copy of each key, a cache is as large as the unpatched
model's; with two it takes half as much again. In exchange each decoded token rotates the keys that it reads in the
smaller region, as a rule those of a window.
"""

from __future__ import annotations

from typing import Literal

import torch

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import CannotCombine, OptionOutOfRange
from hf_posenc.schemes.base import Scheme

KeyCache = Literal["copies", "one"]


class RotatesKeysByRegion(Scheme):
    """Base of schemes whose regions rotate keys differently; ``key_cache`` says how many copies a KV cache holds."""

    def __init__(self, geometry: Geometry, *, key_cache: KeyCache) -> None:
        super().__init__(geometry)
        self.key_cache = key_cache
        if self.caches_one_key and not geometry.causal:
            raise OptionOutOfRange(
                f"Option 'key_cache' of scheme {self.record.name!r}: an encoder has no KV cache, got {key_cache!r}. "
                "Leave the option out."
            )

    @property
    def caches_one_key(self) -> bool:
        return self.key_cache == "one"


def check_one_key(scheme: Scheme) -> None:
    """Refuse to cache one copy of each key where there is only one, or where no rotation leads to the others.

    Args:
        scheme: the whole composition.

    Raises:
        CannotCombine: its rotation does not allow it.
    """
    rotation = scheme.rotation()
    if rotation is None:
        raise CannotCombine(
            f"key_cache='one' has no effect in {scheme.extra_repr()!r}, which rotates nothing: there is one copy of "
            "each key in any case. Leave the option out."
        )
    token = torch.zeros(1, 1, dtype=torch.long)
    regions = scheme.regions(PositionContext(token, token, causal=scheme.geometry.causal, contiguous=True))
    if rotation.learned:
        reason = "has frequencies that are trained"
    elif rotation.decay:
        reason = "scales keys by their position"
    elif rotation.axes is not None:
        reason = "has positions with several axes"
    elif any(region.rotation is not None for region in regions):
        reason = "differs from region to region"
    else:
        return
    raise CannotCombine(
        f"key_cache='one' rotates cached keys from one position to another, and the rotation of "
        f"{scheme.extra_repr()!r} {reason}. Use key_cache='copies'."
    )
