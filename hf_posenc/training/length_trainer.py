"""A `Trainer` that keeps the held-out loss of every window, and whose tokenizer reads as far as the model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_posenc.errors import LimitKept
from hf_posenc.patching.text_limits import raise_limits_in

WINDOWS = "_windows"


class LengthTrainer(Trainer):
    """Adds to the log of an evaluation on one dataset ``eval_NAME_windows``, the losses in the order of its windows.

    Two lengths are then compared window by window.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.losses = list[float]()

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The windows of a batch, which the caller's arguments may have made larger than 1, one after another."""
        count = len(inputs["input_ids"])
        windows = [{name: value[i : i + 1] for name, value in inputs.items()} for i in range(count)]
        losses = torch.stack(
            [super(LengthTrainer, self).prediction_step(model, window, *args, **kwargs)[0].detach().float().mean()
             for window in windows]
        )  # fmt: skip
        self.losses += self.accelerator.gather_for_metrics(losses).tolist()
        return losses.mean(), None, None

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """A checkpoint or the result, whose tokenizer cuts texts where the model ends; remarks are of the result."""
        super()._save(output_dir, state_dict)
        folder = Path(output_dir or self.args.output_dir)
        with warnings.catch_warnings():
            if folder.name.startswith(PREFIX_CHECKPOINT_DIR):
                warnings.simplefilter("ignore", LimitKept)
            raise_limits_in(folder, self.model)

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """One dataset, or several, for which this is called again with each."""
        self.losses = []
        metrics = super().evaluate(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self.losses:
            self.state.log_history.append({metric_key_prefix + WINDOWS: self.losses, "step": self.state.global_step})
            self.losses = []
        return metrics
