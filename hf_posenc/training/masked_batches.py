"""Batches of rows, with tokens masked where a masked model is trained, and the loss of the masked tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DataCollatorForLanguageModeling, TrainerCallback

from hf_posenc.training.dataset import IGNORED_LABEL, MASK_SHARE, Row, check_row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
