"""What a model that is trained from random weights may spend, and how large it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingBudget:
    """What every scheme may spend on one task.

    Attributes:
        trained: greatest length that is trained on, in the unit of the task.
        asked: lengths that are measured.
        steps, batch: optimiser steps, and rows a step.
        learning_rate: peak, of AdamW.
        width, layers: of the model.
    """

    trained: int
    asked: tuple[int, ...]
    steps: int
    batch: int
    learning_rate: float
    width: int = 64
    layers: int = 2
