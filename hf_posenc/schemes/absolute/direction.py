"""The option ``direction``: the vector along which a scalar position code is added to the embedding.

``ones`` adds the number to every channel, as in the textbooks. LayerNorm subtracts the mean over channels, so the code
has no effect in GPT-2 and BERT; Llama's RMSNorm keeps it. ``random`` has fixed random signs instead of ones, of the
same norm but not constant; ``learned`` starts from N(0, 1) and is trained.
"""

from __future__ import annotations

import random
from typing import Literal

import torch
from torch import Tensor, nn

from hf_posenc.core.constants import constant

Direction = Literal["ones", "random", "learned"]
SEED = 0


class Along(nn.Module):
    """Multiply each number by one direction vector of the model's width."""

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
        """``numbers […]``, float32, to ``[…, width]``, float32."""
        if self.vector is None:
            return numbers[..., None] * constant(self.signs, torch.float32, numbers.device)
        return numbers[..., None] * self.vector.float()


def signs(width: int) -> tuple[float, ...]:
    """Random signs that are the same on every machine: Python guarantees the values of `random.Random.random`."""
    stream = random.Random(SEED)
    return tuple(1.0 if stream.random() < 0.5 else -1.0 for _ in range(width))
