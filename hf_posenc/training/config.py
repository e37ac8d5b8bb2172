"""The settings of a fine-tuning run, which are stored in its folder and must be shared by a resumed run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from hf_posenc.core.lengths import MAX_LENGTH
from hf_posenc.errors import TrainingImpossible, shown
from hf_posenc.training.config_checks import (
    LEARNING_RATE,
    Interval,
    check_choice,
    check_count,
    check_duration,
    check_flag,
    check_groups,
    check_names,
    check_stages,
    check_trackers,
)

MAX_SEED = 2**32 - 1  # of NumPy, which transformers seeds as well
SCHEDULES = ("cosine", "linear", "constant_with_warmup", "inverse_sqrt")
"""Of transformers' `SchedulerType`, those that need no arguments of their own."""
COUNTED_FROM_1 = (
    "steps", "batch", "accumulate", "rank", "length_stages", "attention_groups", "save_every", "eval_every",
    "eval_windows",
)  # fmt: skip
MIN_VALUES = {"length": 2, "seed": 0} | dict.fromkeys(COUNTED_FROM_1, 1)
INTERVALS = {
    "learning_rate": LEARNING_RATE,
    "alpha": Interval(0, 1e6, without_least=True),
    "warmup": Interval(0, 1, without_most=True),
    "weight_decay": Interval(0, 1),
}
OPTIONAL = ("steps", "eval_every", "learning_rate", "alpha")


@dataclass(frozen=True)
class Training:
    """Settings of `hf_posenc.training.finetune`.

    Attributes:
        length: tokens a row, at most the model's target length.
        steps: optimiser steps; None where ``epochs`` are given.
        method: what is trained; see `hf_posenc.training.methods`.
        batch: rows that one process reads at a time.
        accumulate: batches a step.
        learning_rate: peak, of AdamW; None: by method and size of the model, see `hf_posenc.training.learning_rates`.
        rank: of the matrices of LoRA and its kin; of prompts and prefixes, the number of virtual tokens.
        alpha: of LoRA and its kin, whose product of matrices is scaled by alpha / rank; None: twice the rank.
        target_modules: names of the linear layers that get matrices, such as ``q_proj``; by default all.
        train_embeddings: whether LoRA and its kin train the input embeddings as well, with an output layer that is tied
            to them; of an 8B model they are most of what is trained.
        warmup: share of the steps before the peak.
        schedule: of the learning rate after that: ``cosine``, ``linear``, ``constant_with_warmup`` or
            ``inverse_sqrt``, as transformers' `SchedulerType` has them.
        weight_decay: of AdamW.
        epochs: times that all rows are read, instead of ``steps``.
        length_stages: stages of equal steps in which rows double in length up to ``length``; the same tokens a step.
        attention_groups: shifted sparse attention while training, where above 1: half of the heads attend within that
            many groups of a row, the other half within groups that are shifted by half a group. For causal models.
        seed: of the method's fresh parameters, of the order of rows and of masks.
        packing: ``joined``: documents follow each other in a row and see their predecessors. ``separate``: every
            document is alone: its positions start at 0 and it sees nothing of its neighbours. For causal models.
        gradient_checkpointing: trade time for memory.
        bf16: compute in bfloat16 (autocast). What is trained is float32 in any case; full fine-tuning of a model in
            half precision turns this on.
        chunked_loss: never hold the logits of all tokens. None: for causal models with a plain output layer.
        save_every: steps between checkpoints.
        eval_every: steps between measurements on held-out text; None: half of the steps.
        eval_lengths: tokens before and including the last that is measured; by default the trained length, doubled up
            to the target length.
        eval_windows: windows of held-out text at each length.
        report_to: names of experiment trackers that the losses are sent to, such as ``trackio``, ``wandb`` and
            ``tensorboard``; they have to be installed.

    Raises:
        TrainingImpossible: a number is out of range, or a name is unknown.
    """

    length: int
    steps: int | None = None
    method: str = "lora"
    batch: int = 1
    accumulate: int = 1
    learning_rate: float | None = None
    rank: int = 16
    alpha: float | None = None
    target_modules: tuple[str, ...] = ()
    train_embeddings: bool = True
    warmup: float = 0.1
    schedule: str = "cosine"
    weight_decay: float = 0.0
    epochs: float | None = None
    length_stages: int = 1
    attention_groups: int = 1
    seed: int = 0
    packing: Literal["joined", "separate"] = "joined"
    gradient_checkpointing: bool = False
    bf16: bool = False
    chunked_loss: bool | None = None
    save_every: int = 20
    eval_every: int | None = None
    eval_lengths: tuple[int, ...] = ()
    eval_windows: int = 32
    report_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_duration(self.steps, self.epochs)
        for name, least in MIN_VALUES.items():
            if name not in OPTIONAL or getattr(self, name) is not None:
                check_count(name, getattr(self, name), least, MAX_SEED if name == "seed" else MAX_LENGTH)
        for name, interval in INTERVALS.items():
            if name not in OPTIONAL or getattr(self, name) is not None:
                interval.check(name, getattr(self, name))
        if not isinstance(self.method, str):
            raise TrainingImpossible(f"method={shown(self.method)} was asked for. Choose a name, such as 'lora'.")
        check_choice("packing", self.packing, ("joined", "separate"))
        check_choice("schedule", self.schedule, SCHEDULES)
        check_names("target_modules", self.target_modules, "q_proj")
        check_trackers(self.report_to)
        check_stages(self.length, self.length_stages, self.packing)
        check_groups(self.length, self.attention_groups, self.length_stages)
        for name in ("train_embeddings", "gradient_checkpointing", "bf16"):
            check_flag(name, getattr(self, name))
        if self.chunked_loss is not None:
            check_flag("chunked_loss", self.chunked_loss)
        if not isinstance(self.eval_lengths, (tuple, list)):
            raise TrainingImpossible(
                f"eval_lengths={shown(self.eval_lengths)} was asked for. Give several lengths, such as (256, 512)."
            )
        for length in self.eval_lengths:
            check_count("eval_lengths", length, 2, MAX_LENGTH)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
