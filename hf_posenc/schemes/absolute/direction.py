"""The vector along which a code of one number a position is added: the one home of the option ``direction``.

``ones`` adds the number to every channel, as the textbooks have it. LayerNorm subtracts what all channels have in
common, so that GPT-2 and BERT never see it; Llama's RMSNorm does. ``random`` has fixed signs instead of ones, as long
and not constant; ``learned`` starts from N(0, 1) and is trained.
"""

from __future__ import annotations

import random
from typing import Literal

import torch
from torch import Tensor, nn

Direction = Literal["ones", "random", "learned"]
SEED = 0


class Along(nn.Module):
    """Numbers to vectors: each times one direction of a model's width."""

    def __init__(self, direction: Direction, width: int) -> None:
        super().__init__()
        self.constant = direction == "ones"
        self.signs = signs(width) if direction == "random" else (1.0,) * width
        self.vector = nn.Parameter(torch.empty(width)) if direction == "learned" else None

    def reset_parameters(self) -> None:
        """Draw a learned direction anew, N(0, 1)."""
        if self.vector is not None:
            nn.init.normal_(self.vector)

    def forward(self, numbers: Tensor) -> Tensor:
        """``numbers […]``, float32, to ``[…, width]``, float32."""
        if self.vector is None:
            return numbers[..., None] * torch.tensor(self.signs, device=numbers.device)
        return numbers[..., None] * self.vector.float()


def signs(width: int) -> tuple[float, ...]:
    """The same ±1 on every machine and Python: the one stream of numbers whose values Python promises to keep."""
    stream = random.Random(SEED)
    return tuple(1.0 if stream.random() < 0.5 else -1.0 for _ in range(width))
