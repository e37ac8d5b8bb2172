"""Settings of a fine-tuning run. They are stored in its folder, and a resumed run must have the same.

The fields define types and bounds. The command line and YAML files set the same fields by name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Strict

from hf_posenc.core.lengths import MAX_LENGTH
from hf_posenc.core.settings import check_fields
from hf_posenc.errors import TrainingImpossible, shown

Count: TypeAlias = Annotated[int, Ge(1), Le(MAX_LENGTH)]
Length: TypeAlias = Annotated[int, Ge(2), Le(MAX_LENGTH)]
Seed: TypeAlias = Annotated[int, Ge(0), Lt(2**32)]  # the range of NumPy, which transformers seeds as well
Rate: TypeAlias = Annotated[float, Gt(0), Le(1e3)]  # a larger rate is a typing error
Alpha: TypeAlias = Annotated[float, Gt(0), Le(1e6)]
Share: TypeAlias = Annotated[float, Ge(0), Lt(1)]
Names: TypeAlias = Annotated[tuple[str, ...], Strict(False)]  # or a list
Lengths: TypeAlias = Annotated[tuple[Length, ...], Strict(False)]


MethodName = Literal["full", "lora"]
OF_LORA = ("rank", "alpha", "target_modules", "train_embeddings")
"""Settings of LoRA, which full fine-tuning does not use."""


@dataclass(frozen=True)
class Training:
    """Settings of `hf_posenc.training.finetune`.

    Attributes:
        length: tokens per row, at most the model's target length.
        steps: optimiser steps; None if ``epochs`` is set.
        method: ``lora`` or ``full``; see `hf_posenc.training.methods`.
        batch: rows per batch and process.
        accumulate: batches per step (gradient accumulation).
        learning_rate: peak of AdamW; None: by method and size of the model, see `hf_posenc.training.methods`.
        rank: rank of the LoRA matrices.
        alpha: LoRA scales the product of its matrices by alpha / rank; None: twice the rank.
        target_modules: names of the linear layers that get LoRA matrices, such as ``q_proj``; by default all.
        train_embeddings: whether LoRA also trains the input embeddings, and the output layer if it is tied to
            them. In an 8B model they are most of the trained parameters.
        warmup: share of the steps before the peak.
        schedule: learning-rate schedule after the warmup: ``cosine``, ``linear``, ``constant_with_warmup`` or
            ``inverse_sqrt``, as in transformers' `SchedulerType`.
        weight_decay: weight decay of AdamW.
        epochs: passes over all rows, instead of ``steps``.
        seed: random seed of new parameters, of the order of rows and of masks.
        packing: ``joined``: a document in a row attends to the documents before it. ``separate``: every document
            starts at position 0 and attends to itself only; for causal models.
        gradient_checkpointing: trade time for memory.
        bf16: compute in bfloat16 (autocast). Trained weights are float32 in any case. Full fine-tuning of a model in
            half precision turns this on.
        chunked_loss: compute the loss without the logits of all tokens at once. None: if the model allows it.
        save_every: steps between checkpoints.
        eval_every: steps between measurements on held-out text; None: half of the steps.
        eval_lengths: lengths in tokens at which the loss is measured; by default the trained length, doubled up to the
            target length.
        eval_windows: windows of held-out text at each length.
        report_to: installed experiment trackers that log the losses, such as ``trackio``, ``wandb``, ``tensorboard``.

    Raises:
        TrainingImpossible: a number is out of range, a name is unknown, or the method does not use a setting.
    """

    length: Length
    steps: Count | None = None
    method: MethodName = "lora"
    batch: Count = 1
    accumulate: Count = 1
    learning_rate: Rate | None = None
    rank: Count = 16
    alpha: Alpha | None = None
    target_modules: Names = ()
    train_embeddings: bool = True
    warmup: Share = 0.1
    schedule: Literal["cosine", "linear", "constant_with_warmup", "inverse_sqrt"] = "cosine"
    weight_decay: Annotated[float, Ge(0), Le(1)] = 0.0
    epochs: Annotated[float, Gt(0), Le(1e4)] | None = None
    seed: Seed = 0
    packing: Literal["joined", "separate"] = "joined"
    gradient_checkpointing: bool = False
    bf16: bool = False
    chunked_loss: bool | None = None
    save_every: Count = 20
    eval_every: Count | None = None
    eval_lengths: Lengths = ()
    eval_windows: Count = 32
    report_to: Names = ()

    def __post_init__(self) -> None:
        check_fields(self, TrainingImpossible)
        if (self.steps is None) == (self.epochs is None):
            raise TrainingImpossible(
                f"A run has steps or epochs, got steps={self.steps} and epochs={self.epochs}. Set one of the two."
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if self.method == "full" and field.name in OF_LORA and value != field.default:
                raise TrainingImpossible(
                    f"{field.name}={shown(value)} was asked for, and method 'full' does not use it. Choose method "
                    "lora, or leave it out."
                )

    @property
    def arguments(self) -> dict[str, Any]:
        """Settings under their names in `TrainingArguments`."""
        if self.steps is None:
            duration: dict[str, Any] = {"num_train_epochs": self.epochs, "warmup_steps": self.warmup}  # a share
        else:  # `Trainer` rounds a share up: the learning rate of a short run would begin, or end, at 0
            duration = {"max_steps": self.steps, "warmup_steps": round(self.warmup * self.steps)}
        return {
            **duration,
            "per_device_train_batch_size": self.batch,
            "gradient_accumulation_steps": self.accumulate,
            "learning_rate": self.learning_rate,
            "lr_scheduler_type": self.schedule,
            "weight_decay": self.weight_decay,
            "bf16": self.bf16,
            "seed": self.seed,
            "save_steps": self.save_every,
            "logging_steps": 1,
            "report_to": list(self.report_to) or "none",
        }
