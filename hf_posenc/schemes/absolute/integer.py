"""Integer positions: the position itself, added to the token embedding.

    x_p ← x_p + α (p + s) u          u = direction, s = start: 0 or 1

The simplest code, with known defects. It is unbounded, so it dominates the token embeddings as p grows. LayerNorm
(GPT-2, BERT) subtracts the textbooks' u = (1, …, 1) again before attention. And bfloat16 represents integers exactly
only up to 256.

Kazemnejad 2019, "Transformer Architecture: The Positional Encoding", kazemnejad.com, and many textbooks. Nothing is
learned unless ``direction="learned"``; for models trained with it.
"""

from __future__ import annotations

import random
from typing import Literal

import torch
from torch import Tensor, nn

from hf_posenc.core.constants import constant
from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import register_scheme

Direction = Literal["ones", "random", "learned"]
"""The vector along which numbers are added; see `Along`."""
SEED = 0  # seed of the random signs


@register_scheme(
    "integer", aliases=("int",), paper="https://kazemnejad.com/blog/transformer_architecture_positional_encoding/"
)
class Integer(Scheme):
    """``alpha`` times the position, along one ``direction``: all ones, random signs, or learned."""

    formula = r"""
    x_p &\leftarrow x_p + \alpha \, (p + s) \, u \\
    u &= \mathtt{direction}, \quad s = \mathtt{start} \in \{0, 1\}
    """

    def __init__(
        self, geometry: Geometry, *, alpha: float = 1.0, start: Literal[0, 1] = 0, direction: Direction = "ones"
    ) -> None:
        super().__init__(geometry)
        refuse_zero(alpha)
        self.alpha, self.start = alpha, start
        self.along = Along(direction, geometry.code_width)

    def reset_parameters(self) -> None:
        """Redraw a learned direction."""
        self.along.reset_parameters()

    def embed(self, positions: Tensor) -> Tensor:
        """Codes of ``positions [batch or 1, query]``, ``[batch or 1, query, width]``, float32."""
        return self.along(self.alpha * (positions + self.start).float())

    @property
    def may_vanish(self) -> bool:
        """Whether the code is constant over channels, which LayerNorm removes."""
        return self.along.constant


def refuse_zero(alpha: float) -> None:
    """Refuse a factor that makes every code zero."""
    if alpha == 0:
        raise OptionOutOfRange('alpha must not be 0, which adds nothing. For no positions at all use scheme="none".')


class Along(nn.Module):
    """Multiply each number by one direction vector of the model's width, the option ``direction`` of scalar codes.

    ``ones`` adds the number to every channel, as in the textbooks. LayerNorm subtracts the mean over channels, so the
    code has no effect in GPT-2 and BERT; Llama's RMSNorm keeps it. ``random`` has fixed random signs instead of ones:
    the same norm, but not constant. ``learned`` starts from N(0, 1) and is trained.
    """

    def __init__(self, direction: Direction, width: int) -> None:
        super().__init__()
        self.constant = direction == "ones"
        self.signs = signs(width) if direction == "random" else (1.0,) * width
        self.vector = nn.Parameter(torch.empty(width)) if direction == "learned" else None

    def reset_parameters(self) -> None:
        """Redraw a learned direction, N(0, 1)."""
        if self.vector is not None:
            nn.init.normal_(self.vector)

    def forward(self, numbers: Tensor) -> Tensor:
        """Multiply ``numbers […]`` by the direction: ``[…, width]``, float32."""
        if self.vector is None:
            return numbers[..., None] * constant(self.signs, torch.float32, numbers.device)
        return numbers[..., None] * self.vector.float()


def signs(width: int) -> tuple[float, ...]:
    """Random signs that are the same on every machine: Python guarantees the values of `random.Random.random`."""
    stream = random.Random(SEED)
    return tuple(1.0 if stream.random() < 0.5 else -1.0 for _ in range(width))
