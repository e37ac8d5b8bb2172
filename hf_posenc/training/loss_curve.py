"""The loss curve of a run: training and held-out loss against steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Point:
    """Losses after a step.

    Attributes:
        step: optimiser steps done; 0 is before training.
        loss: of the rows trained on, nats/token; None where nothing was trained yet.
        held_out: loss of held-out text by length, nats/token; empty where it was not measured.
    """

    step: int
    loss: float | None = None
    held_out: Mapping[int, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"step": self.step, "loss": self.loss, "held_out": {str(n): v for n, v in self.held_out.items()}}


def points(history: Sequence[Mapping[str, Any]]) -> list[Point]:
    """`Trainer`'s log, a point a step."""
    losses: dict[int, float] = {}
    held_out: dict[int, dict[int, float]] = {}
    for entry in history:
        if "loss" in entry:
            losses[entry["step"]] = entry["loss"]
        for name, value in entry.items():
            length = name.removeprefix("eval_").removesuffix("_loss")
            if name == f"eval_{length}_loss" and length.isdigit():
                held_out.setdefault(entry["step"], {})[int(length)] = value
    return [
        Point(step, losses.get(step), dict(sorted(held_out.get(step, {}).items())))
        for step in sorted(losses.keys() | held_out.keys())
    ]
