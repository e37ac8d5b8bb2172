"""A `Trainer` that keeps the held-out loss of every window, so that two lengths are compared window by window."""

from __future__ import annotations

from typing import Any

from transformers import Trainer

WINDOWS = "_windows"


class WindowLossTrainer(Trainer):
    """Adds to the log of an evaluation on one dataset ``eval_NAME_windows``, the losses in the order of its windows.

    Windows are read one at a time, so that a batch's loss is that of a window.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.losses: list[float] = []

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """One window in every process."""
        step = super().prediction_step(*args, **kwargs)
        self.losses += self.accelerator.gather_for_metrics(step[0].detach().float().reshape(1)).tolist()  # type: ignore[union-attr]
        return step

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """One dataset, or several, for which this is called again with each."""
        self.losses = []
        metrics = super().evaluate(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self.losses:
            self.state.log_history.append({metric_key_prefix + WINDOWS: self.losses, "step": self.state.global_step})
            self.losses = []
        return metrics
