"""Setup of `Trainer` for a run: its arguments, batches, held-out losses by window, and float32 master weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_posenc.core.constants import HALF
from hf_posenc.errors import LimitKept, TrainingImpossible, WrongKind, first_line, shown
from hf_posenc.patching.text_limits import raise_limits_in
from hf_posenc.training.config import Training
from hf_posenc.training.dataset import IGNORED_LABEL, MASK_SHARE, Row, check_row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, TrainingArguments


class LengthTrainer(Trainer):
    """`Trainer` that also logs ``eval_NAME_windows``: the loss of every window of the dataset NAME, in order.

    With them, two lengths are compared window by window.
    """

    losses: list[float]

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Evaluate the windows of a batch one at a time, whatever the batch size is."""
        count = len(inputs["input_ids"])
        windows = [{name: value[i : i + 1] for name, value in inputs.items()} for i in range(count)]
        losses = torch.stack(
            [super(LengthTrainer, self).prediction_step(model, window, *args, **kwargs)[0].detach().float().mean()
             for window in windows]
        )  # fmt: skip
        self.losses += self.accelerator.gather_for_metrics(losses).tolist()
        return losses.mean(), None, None

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save, and raise the tokenizer's length limit to that of the model; checkpoints do so without a warning."""
        super()._save(output_dir, state_dict)
        folder = Path(output_dir or self.args.output_dir)
        with warnings.catch_warnings():
            if folder.name.startswith(PREFIX_CHECKPOINT_DIR):
                warnings.simplefilter("ignore", LimitKept)
            raise_limits_in(folder, self.model)

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """Evaluate one dataset, or several: `Trainer` then calls this again for each."""
        self.losses = []
        metrics = super().evaluate(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self.losses:
            name, step = f"{metric_key_prefix}_windows", self.state.global_step
            self.state.log_history.append({name: self.losses, "step": step})
            self.losses = []
        return metrics


class LabellingCollator(TrainerCallback):
    """Collate rows into a batch, and label rows without labels: with their tokens, or with the tokens it masks.

    Masks depend on seed, epoch and row only. A run that is resumed, or shared by several processes, therefore has the
    same masks as an uninterrupted run in one process.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int, *, causal: bool) -> None:
        self.tokenizer, self.seed, self.causal = tokenizer, seed, causal
        self.epoch = torch.tensor(0).share_memory_()  # workers of a DataLoader may outlive an epoch

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Store the epoch before its first batch is read."""
        self.epoch.fill_(int(state.epoch or 0))

    def __call__(self, rows: list[Row]) -> dict[str, Any]:
        """Stack rows ``[token]`` to tensors ``[row, token]``."""
        for row in rows:
            check_row(row)
        rows = [row if "labels" in row else self.with_labels(row) for row in rows]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def with_labels(self, row: Row) -> Row:
        """Label a row with its tokens, which the model shifts; or, for a masked model, mask it and label the masks."""
        ids = row["input_ids"]
        if self.causal:
            padding = row.get("attention_mask", torch.ones_like(ids)) == 0
            return {**row, "labels": ids.masked_fill(padding, IGNORED_LABEL)}
        masking = DataCollatorForLanguageModeling(self.tokenizer, mlm_probability=MASK_SHARE)
        epoch_seed = (self.seed + (int(self.epoch) << 16)) % (1 << 32)
        masking.generator = torch.Generator().manual_seed(crc32(ids.numpy().tobytes(), epoch_seed))
        masked, labels = masking.torch_mask_tokens(ids[None].clone())
        return {**row, "input_ids": masked[0], "labels": labels[0]}


def masked_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Return the cross-entropy loss in nats per masked token of a step, over all its batches and processes.

    A masked model of transformers averages over each batch, and `Trainer` would sum these averages.
    """
    total = functional.cross_entropy(
        outputs.logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    return total / ((labels != IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch)


CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")


def training_arguments(
    training: Training,
    windows: Mapping[str, Any] | None,
    overrides: Any,
    *,
    folder: str,
    keep: bool,
    autocast: bool,
    fresh: bool,
) -> TrainingArguments:
    """Build the `TrainingArguments` of a run.

    Args:
        training: settings of the run.
        windows: held-out windows by length, or None.
        overrides: the caller's own arguments, which override the others.
        folder: folder of the checkpoints.
        keep: whether to write checkpoints.
        autocast: whether to compute in bfloat16 even if ``training.bf16`` is false.
        fresh: whether the run starts at step 0: only then the windows are measured before training.
    """
    from transformers import TrainingArguments
    from transformers.integrations import get_reporting_integration_callbacks

    if overrides is not None and not isinstance(overrides, Mapping):
        raise WrongKind(f"arguments is a mapping from names to values, got {shown(overrides)}. Pass a dictionary.")
    # `Trainer` reads a number below 1 as a share of the steps. Checkpoints store the number, where it is known.
    half = 0.5 if training.steps is None else ceil(training.steps / 2)
    settings = {
        **training.arguments,
        "output_dir": folder,
        "per_device_eval_batch_size": 1,
        "max_grad_norm": 1.0,
        "data_seed": training.seed,
        "bf16": training.bf16 or autocast,
        "save_strategy": "steps" if keep else "no",
        "save_total_limit": 2,
        "logging_strategy": "steps",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "use_cpu": not torch.accelerator.is_available(),
        "eval_strategy": "no",
    }
    if training.gradient_checkpointing:  # under the name that this version of transformers has for it
        name = next(name for name in CHECKPOINTING if name in TrainingArguments.__dataclass_fields__)
        settings |= {name: True, f"{name}_kwargs": {"use_reentrant": False}}
    if windows is not None:
        settings |= {
            "eval_strategy": "steps", "eval_steps": training.eval_every or half, "eval_on_start": fresh,
            "prediction_loss_only": True,
        }  # fmt: skip
    try:
        arguments = TrainingArguments(**{**settings, **(overrides or {})})
        get_reporting_integration_callbacks(arguments.report_to)  # refuses unknown experiment trackers
    except (TypeError, ValueError, AttributeError, ImportError) as error:
        raise TrainingImpossible(
            f"TrainingArguments refuses these settings: {first_line(error)}. Correct arguments."
        ) from error
    return arguments


@contextmanager
def float32_masters(model: nn.Module) -> Iterator[None]:
    """Convert the weights of ``model`` to float32 inside the block, and back to their dtype after it.

    Mixed-precision training with master weights (Micikevicius et al. 2017, arXiv:1710.03740): AdamW updates float32
    weights, and `autocast` computes in bfloat16. With bfloat16 weights, most updates at a small learning rate would be
    rounded to zero.
    """
    halves = {name: weight.dtype for name, weight in model.named_parameters() if weight.dtype in HALF}
    for name, weight in model.named_parameters():
        if name in halves:
            weight.data = weight.data.float()
    try:
        yield
    finally:
        for name, weight in model.named_parameters():
            if name in halves and type(weight.data) is Tensor:  # weights that FSDP sharded stay float32
                weight.data = weight.data.to(halves[name])
