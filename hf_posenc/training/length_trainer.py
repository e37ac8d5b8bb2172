"""How `Trainer` is set up for a run: its arguments, held-out losses by window, its batches, and precise weights."""

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


class LabellingCollator(TrainerCallback):
    """Collate rows into a batch; rows without labels get their own tokens, or are masked and get the masked ones.

    Masks are drawn by seed, epoch and row alone: those of a run that is resumed, or shared by several processes, are
    those of an undisturbed run in one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int, *, causal: bool) -> None:
        self.tokenizer, self.seed, self.causal = tokenizer, seed, causal
        self.epoch = torch.tensor(0).share_memory_()  # with the workers of a DataLoader, which may outlive an epoch

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before the epoch's first batch is read."""
        self.epoch.fill_(int(state.epoch or 0))

    def __call__(self, rows: list[Row]) -> dict[str, Any]:
        """Rows ``[token]`` to tensors ``[row, token]``."""
        for row in rows:
            check_row(row)
        rows = [row if "labels" in row else self.labelled(row) for row in rows]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def labelled(self, row: Row) -> Row:
        """A row labelled with its tokens, which the model shifts; or with those that are masked in it."""
        ids = row["input_ids"]
        if self.causal:
            padding = row.get("attention_mask", torch.ones_like(ids)) == 0
            return {**row, "labels": ids.masked_fill(padding, IGNORED_LABEL)}
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


CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")


def training_arguments(
    training: Training,
    windows: Mapping[str, Any] | None,
    more: Any,
    *,
    folder: str,
    keep: bool,
    autocast: bool,
    fresh: bool,
) -> TrainingArguments:
    """`TrainingArguments` of a run.

    Args:
        training: settings of the run.
        windows: that are measured; None for none.
        more: the caller's own arguments, which override the others.
        folder: of the checkpoints.
        keep: whether there are checkpoints.
        autocast: whether the run computes in bfloat16 whatever its settings are.
        fresh: whether the run begins; a resumed one has been measured before its first step already.
    """
    from transformers import TrainingArguments
    from transformers.integrations import get_reporting_integration_callbacks

    if more is not None and not isinstance(more, Mapping):
        raise WrongKind(f"arguments is a mapping from names to values, got {shown(more)}. Pass a dictionary.")
    # A share of unknown steps is a number below 1; where they are known, the number that a checkpoint stores.
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
        **(checkpointing() if training.gradient_checkpointing else {}),
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "use_cpu": not torch.accelerator.is_available(),
        "eval_strategy": "no",
    }
    if windows is not None:
        settings |= {
            "eval_strategy": "steps", "eval_steps": training.eval_every or half, "eval_on_start": fresh,
            "prediction_loss_only": True,
        }  # fmt: skip
    try:
        arguments = TrainingArguments(**{**settings, **(more or {})})
        get_reporting_integration_callbacks(arguments.report_to)  # refuses experiment trackers it does not know
    except (TypeError, ValueError, AttributeError, ImportError) as error:
        raise TrainingImpossible(
            f"TrainingArguments refuses what was asked for: {first_line(error)}. Correct arguments."
        ) from error
    return arguments


def checkpointing() -> dict[str, Any]:
    """`TrainingArguments` that trade time for memory, under the name that this version of transformers has for it."""
    from transformers import TrainingArguments

    name = next(name for name in CHECKPOINTING if name in TrainingArguments.__dataclass_fields__)
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}}


@contextmanager
def float32_masters(model: nn.Module) -> Iterator[None]:
    """Hold the weights of ``model`` in float32 during the block, and give them their dtype back after it.

    Mixed-precision training with master weights (Micikevicius et al. 2017, arXiv:1710.03740): steps of AdamW are added
    to float32 weights, and `autocast` computes in bfloat16 from them. Weights in bfloat16 themselves would round most
    steps of a small learning rate to nothing.
    """
    halves = {name: weight.dtype for name, weight in model.named_parameters() if weight.dtype in HALF}
    for name, weight in model.named_parameters():
        if name in halves:
            weight.data = weight.data.float()
    try:
        yield
    finally:
        for name, weight in model.named_parameters():
            if name in halves and type(weight.data) is Tensor:  # what FSDP has sharded stays as it is
                weight.data = weight.data.to(halves[name])
