"""The loss curve of a run: training and held-out loss against steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_posenc.core.student_t import mean_interval

MEASURED = re.compile(r"eval_(?P<length>[0-9]+)_(?P<kind>loss|windows)")


@dataclass(frozen=True)
class LossPoint:
    """Losses after a step.

    Attributes:
        step: optimiser steps done; 0 is before training.
        loss: of the rows trained on, nats/token; None where nothing was trained yet.
        held_out: loss of held-out text by length, nats/token; empty where it was not measured.
        windows: the same by window: at every length, windows of the same number end at the same token.
    """

    step: int
    loss: float | None = None
    held_out: Mapping[int, float] = field(default_factory=dict)
    windows: Mapping[int, Sequence[float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        held_out = {str(length): loss for length, loss in self.held_out.items()}
        windows = {str(length): list(losses) for length, losses in self.windows.items()}
        return {"step": self.step, "loss": self.loss, "held_out": held_out} | ({"windows": windows} if windows else {})

    def difference(self, length: int, against: int) -> tuple[float, float] | None:
        """The loss at a length minus that at another, window by window: mean and half of the 95 % confidence interval.

        Text that a model was adapted to has a lower loss at every length; what a longer context adds is this
        difference. None where windows were not kept; half of the interval is NaN for a single window.
        """
        longer, shorter = self.windows.get(length), self.windows.get(against)
        if not longer or not shorter:
            return None
        return mean_interval([a - b for a, b in zip(longer, shorter, strict=True)])


def points(history: Sequence[Mapping[str, Any]]) -> list[LossPoint]:
    """`Trainer`'s log, a point a step."""
    losses: dict[int, float] = {}
    held_out: dict[int, dict[int, float]] = {}
    windows: dict[int, dict[int, list[float]]] = {}
    for entry in history:
        if "loss" in entry:
            losses[entry["step"]] = entry["loss"]
        for name, value in entry.items():
            if (measured := MEASURED.fullmatch(name)) is not None:
                found = windows if measured["kind"] == "windows" else held_out
                found.setdefault(entry["step"], {})[int(measured["length"])] = value
    return [
        LossPoint(
            step, losses.get(step), dict(sorted(held_out.get(step, {}).items())),
            dict(sorted(windows.get(step, {}).items())),
        )
        for step in sorted(losses.keys() | held_out.keys())
    ]  # fmt: skip
