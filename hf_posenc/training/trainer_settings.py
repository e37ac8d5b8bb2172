"""How `Trainer` is set up by the settings of a run: its arguments, and the precision of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hf_posenc.core.constants import HALF
from hf_posenc.errors import TrainingImpossible, WrongKind, first_line, shown
from hf_posenc.training.config import Training

if TYPE_CHECKING:
    from transformers import TrainingArguments

CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")


def training_arguments(settings: Mapping[str, Any], more: Any) -> TrainingArguments:
    """`TrainingArguments` of a run; the caller's override the others.

    Raises:
        WrongKind: the caller's are no mapping.
        TrainingImpossible: transformers does not know an argument, or refuses its value.
    """
    from transformers import TrainingArguments
    from transformers.integrations import get_reporting_integration_callbacks

    if more is not None and not isinstance(more, Mapping):
        raise WrongKind(f"arguments is a mapping from names to values, got {shown(more)}. Pass a dictionary.")
    try:
        arguments = TrainingArguments(**{**settings, **(more or {})})
        get_reporting_integration_callbacks(arguments.report_to)  # refuses experiment trackers it does not know
    except (TypeError, ValueError, AttributeError, ImportError) as error:
        raise TrainingImpossible(
            f"TrainingArguments refuses what was asked for: {first_line(error)}. Correct arguments."
        ) from error
    return arguments


def trainer_settings(training: Training, folder: str, *, keep: bool, autocast: bool) -> dict[str, Any]:
    """`TrainingArguments` of a run.

    Args:
        training: settings of the run.
        folder: for checkpoints.
        keep: whether any are written.
        autocast: whether float32 copies of half-precision weights are trained, which needs autocast to bfloat16.
    """
    return {
        "output_dir": folder,
        "max_steps": -1 if training.steps is None else training.steps,
        "num_train_epochs": training.epochs or 1.0,
        "per_device_train_batch_size": training.batch,
        "per_device_eval_batch_size": 1,
        "gradient_accumulation_steps": training.accumulate,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": training.schedule,
        "warmup_steps": warmup_steps(training),
        "weight_decay": training.weight_decay,
        "max_grad_norm": 1.0,
        "seed": training.seed,
        "data_seed": training.seed,
        "bf16": training.bf16 or autocast,
        "save_strategy": "steps" if keep else "no",
        "save_steps": training.save_every,
        "save_total_limit": 2,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "report_to": list(training.report_to) or "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        **(checkpointing() if training.gradient_checkpointing else {}),
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "use_cpu": not torch.accelerator.is_available(),
    }


def checkpointing() -> dict[str, Any]:
    """`TrainingArguments` that trade time for memory, under the name that this version of transformers has for it."""
    from transformers import TrainingArguments

    name = next(name for name in CHECKPOINTING if name in TrainingArguments.__dataclass_fields__)
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}}


def warmup_steps(training: Training) -> float:
    """Steps before the peak learning rate; their share where only `Trainer` will know the number of steps.

    Its own rounding upwards would make a run of a few steps begin, or end, at a learning rate of 0.
    """
    return training.warmup if training.steps is None else round(training.warmup * training.steps)


def evaluation_settings(training: Training, windows: Mapping[str, Any] | None, *, fresh: bool) -> dict[str, Any]:
    """`TrainingArguments` of the evaluations; a resumed run has already done the one before its first step."""
    if windows is None:
        return {"eval_strategy": "no"}
    # A share of unknown steps is a number below 1; where they are known, the number that a checkpoint stores.
    half = 0.5 if training.steps is None else ceil(training.steps / 2)
    return {
        "eval_strategy": "steps",
        "eval_steps": training.eval_every or half,
        "eval_on_start": fresh,
        "prediction_loss_only": True,
    }


def in_half_precision(model: nn.Module) -> bool:
    """Whether a weight that is trained is in half precision."""
    return any(weight.dtype in HALF for weight in model.parameters() if weight.requires_grad)


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
