"""Dynamic NTK: the RoPE base grows with the sequence length; sequences within the trained length are unchanged.

    base'(L) = base · (1 + f (L / L0 − 1))^(d / (d − 2))  for L > L0, base for L ≤ L0        f = multiplier

L is the length *at each query*: token i and all its keys are rotated with the base of length i + 1. One length for a
whole call, as in other implementations, would make outputs depend on later tokens, and cached decoding differ from a
single forward pass. Keys are therefore cached unrotated, and rotated for each query. In an encoder, the length of the
sequence counts for all its queries.

emozilla 2023, reddit.com/r/LocalLLaMA/comments/14mrgpr.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_posenc.core.constants import exact_dtype
from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.core.terms import RowRotation
from hf_posenc.schemes.absolute.text_length import text_lengths
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import AtLeastOne, Base, PositiveInt
from hf_posenc.schemes.registry import register_scheme
from hf_posenc.schemes.rotary.ntk import stretched
from hf_posenc.schemes.rotary.rotary import Rotary, own_within_trained

STEPS = 4
"""Number of rotations per trained length of tokens in a comparison. For a small Llama on a novel, up to 8×, losses with
16 and with 1 differ by less than 0.005 nats, and 4 take 1.2 times as long as 1."""


class RotationByLength(Scheme):
    """Base of schemes whose rotation depends on the length at each query; subclasses define the rotation of a length.

    Args:
        geometry: geometry of the model.
        granularity: step in tokens to which lengths beyond the trained length are rounded up.
        base: θ of the unscaled frequencies; the model's own by default.
    """

    stretches: ClassVar[bool] = True

    @classmethod
    def comparison_options(cls, *, factor: float, trained_length: int) -> dict[str, Any]:
        """Steps of a quarter of the trained length. One rotation per token takes up to a hundred times as long."""
        return {"granularity": max(1, trained_length // STEPS)}

    def __init__(self, geometry: Geometry, *, granularity: int, base: float | None) -> None:
        super().__init__(geometry)
        self.granularity = granularity
        rope = Rotary(geometry, base=base)
        self.base, self.unscaled, self.frequencies = rope.base, rope.rotation(), rope.frequencies()

    def row_rotation(self) -> RowRotation:
        """The rotation of every length that a query can have."""
        return RowRotation(self.length_of, self.rotation_of, self.frequencies_of)

    def length_of(self, positions: Tensor) -> Tensor:
        """Length at queries of ``positions […]``, rounded up; at least the trained length."""
        trained, step = self.geometry.trained_length, self.granularity
        lengths = positions + 1 if self.geometry.causal else text_lengths(positions)
        if step == 1:  # equal, with a quarter of the operations; every decoded token pays for them
            return lengths.clamp(min=trained)
        beyond = (lengths - trained).clamp(min=0)
        return trained + (beyond + step - 1) // step * step

    def rotation_of(self, length: int) -> Rotation:
        """The rotation of queries at a length, which is at least the trained length."""
        raise NotImplementedError

    def frequencies_of(self, lengths: Tensor) -> Tensor:
        """Radians per token of each pair at ``lengths […]``, ``[…, pairs]``, float64 where the device has it."""
        raise NotImplementedError

    @property
    def unchanged_below(self) -> int:
        """The trained length if the unscaled rotation is the model's own; else 0."""
        return own_within_trained(self.geometry, self.unscaled, 1.0)


@register_scheme(
    "dynamic_ntk", aliases=("dynamic",), zero_shot=True, cache="raw",
    paper="https://www.reddit.com/r/LocalLLaMA/comments/14mrgpr",
)  # fmt: skip
class DynamicNTK(RotationByLength):
    """RoPE whose base follows the sequence length so far. Exact up to the trained length, usable to 2–4×.

    ``granularity`` rounds lengths beyond the trained length up, to steps of that many tokens. Blocks of queries then
    share a rotation, which is cheaper and still the same with and without cache. Decoding rotates only the new key,
    except at the first token of a step. ``multiplier`` scales the base by more than the length requires.
    """

    formula = r"""
    \mathrm{base}'(L) &= \begin{cases}
    \mathrm{base} \cdot \left( 1 + f \left( L / L_0 - 1 \right) \right)^{d / (d - 2)} & L > L_0 \\
    \mathrm{base} & L \le L_0
    \end{cases} \\
    f &= \mathtt{multiplier}
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        multiplier: AtLeastOne = 1.0,
        granularity: PositiveInt = 1,
        base: Base | None = None,
    ) -> None:
        super().__init__(geometry, granularity=granularity, base=base)
        self.multiplier = multiplier
        self.native_parameters = Rotary(geometry, base=base).scaled_as("dynamic", factor=multiplier)

    @classmethod
    def comparison_options(cls, *, factor: float, trained_length: int) -> dict[str, Any]:
        """The factor as the multiplier, as in transformers' ``dynamic``."""
        steps = super().comparison_options(factor=factor, trained_length=trained_length)
        return steps | {"multiplier": factor}

    def rotation_of(self, length: int) -> Rotation:
        """The rotation of queries at a length."""
        stretch = 1 + self.multiplier * (length / self.geometry.trained_length - 1)
        return Rotation(stretched(self.frequencies, stretch), self.unscaled.layout)

    def frequencies_of(self, lengths: Tensor) -> Tensor:
        """Radians per token of each pair at ``lengths […]``, ``[…, pairs]``, float64."""
        exact = exact_dtype(lengths.device)
        stretch = 1 + self.multiplier * (lengths.to(exact) / self.geometry.trained_length - 1)
        unscaled = torch.tensor(self.frequencies, dtype=exact, device=lengths.device)
        powers = torch.arange(len(unscaled), dtype=exact, device=lengths.device) / max(len(unscaled) - 1, 1)
        return unscaled * stretch[..., None] ** -powers

    def native_within_trained(self) -> dict[str, Any]:
        """Parameters of transformers, which rotates queries by the length of the call, and keys by it when cached."""
        return self.native_parameters
