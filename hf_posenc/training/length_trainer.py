"""A `Trainer` that keeps the held-out loss of every window; its batches, and the loss of masked ones."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_posenc.errors import LimitKept
from hf_posenc.patching.text_limits import raise_limits_in
from hf_posenc.training.dataset import IGNORED_LABEL, MASK_SHARE, Row, check_row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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


class MaskingCollator(TrainerCallback):
    """Collate rows into a batch; rows without labels are masked, and labelled with the masked tokens.

    Masks are drawn by seed, epoch and row alone: those of a run that is resumed, or shared by several processes, are
    those of an undisturbed run in one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        self.epoch = torch.tensor(0).share_memory_()  # with the workers of a DataLoader, which may outlive an epoch

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before the epoch's first batch is read."""
        self.epoch.fill_(int(state.epoch or 0))

    def __call__(self, rows: list[Row]) -> dict[str, Any]:
        """Rows ``[token]`` to tensors ``[row, token]``."""
        for row in rows:
            check_row(row)
        rows = [row if "labels" in row else self.masked(row) for row in rows]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def masked(self, row: Row) -> Row:
        """Mask tokens of a row, and label it with them."""
        ids = row["input_ids"]
        hide = DataCollatorForLanguageModeling(self.tokenizer, mlm_probability=MASK_SHARE)
        drawn = (self.seed + (int(self.epoch) << 16)) % (1 << 32)
        hide.generator = torch.Generator().manual_seed(crc32(ids.numpy().tobytes(), drawn))
        hidden, labels = hide.torch_mask_tokens(ids[None].clone())
        return {**row, "input_ids": hidden[0], "labels": labels[0]}


def masked_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Cross-entropy loss in nats per masked token of the whole step, over all its batches and processes.

    A masked model of transformers averages over each batch, and `Trainer` would add these means up.
    """
    total = functional.cross_entropy(
        outputs.logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    return total / ((labels != IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch)
