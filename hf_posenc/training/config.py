"""The settings of a fine-tuning run, which are stored in its folder and must be shared by a resumed run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from hf_posenc.core.lengths import MAX_LENGTH
from hf_posenc.errors import MissingExtra, TrainingImpossible, nearest, shown

MAX_SEED = 2**32 - 1  # of NumPy, which transformers seeds as well
MAX_EPOCHS = 10_000
SCHEDULES = ("cosine", "linear", "constant_with_warmup", "inverse_sqrt")
"""Of transformers' `SchedulerType`, those that need no arguments of their own."""
MAX_LEARNING_RATE = 1e3
"""Learning rate; a step of more than that is a typing error."""
MIN_VALUES = {"length": 2, "seed": 0} | dict.fromkeys(
    ("steps", "batch", "accumulate", "rank", "length_stages", "save_every", "eval_every", "eval_windows"), 1
)
OPTIONAL = ("steps", "eval_every")


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
        train_embeddings: whether LoRA and its kin train the input embeddings as well, with an output layer that is tied
            to them; of an 8B model they are most of what is trained.
        warmup: share of the steps before the peak.
        schedule: of the learning rate after that: ``cosine``, ``linear``, ``constant_with_warmup`` …, by the names of
            transformers' `SchedulerType`.
        weight_decay: of AdamW.
        epochs: times that all rows are read, instead of ``steps``.
        length_stages: stages of equal steps in which rows double in length up to ``length``; the same tokens a step.
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
    train_embeddings: bool = True
    warmup: float = 0.1
    schedule: str = "cosine"
    weight_decay: float = 0.0
    epochs: float | None = None
    length_stages: int = 1
    seed: int = 0
    packing: Literal["joined", "separate"] = "joined"
    gradient_checkpointing: bool = False
    bf16: bool = False
    chunked_loss: bool | None = None
    save_every: int = 50
    eval_every: int | None = None
    eval_lengths: tuple[int, ...] = ()
    eval_windows: int = 32
    report_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_duration(self.steps, self.epochs)
        for name, bound in MIN_VALUES.items():
            if name not in OPTIONAL or getattr(self, name) is not None:
                check_count(name, getattr(self, name), bound, MAX_SEED if name == "seed" else MAX_LENGTH)
        check_trackers(self.report_to)
        if self.schedule not in SCHEDULES:
            raise TrainingImpossible(
                f"There is no schedule {shown(self.schedule)}.{nearest(self.schedule, SCHEDULES)} "
                f"Choose one of {', '.join(SCHEDULES)}."
            )
        if not 0 <= number(self.weight_decay) <= 1:
            raise TrainingImpossible(
                f"weight_decay={shown(self.weight_decay)} was asked for. Choose a number from 0 to 1."
            )
        if self.learning_rate is not None:
            check_learning_rate("learning_rate", self.learning_rate)
        if not 0 <= number(self.warmup) < 1:
            raise TrainingImpossible(
                f"warmup={shown(self.warmup)} was asked for. Choose a number from 0 to less than 1."
            )
        if not isinstance(self.method, str):
            raise TrainingImpossible(f"method={shown(self.method)} was asked for. Choose a name, such as 'lora'.")
        if self.packing not in ("joined", "separate"):
            raise TrainingImpossible(
                f"There is no packing {shown(self.packing)}.{nearest(self.packing, ('joined', 'separate'))} "
                "Choose joined or separate."
            )
        check_stages(self.length, self.length_stages, self.packing)
        for name in ("train_embeddings", "gradient_checkpointing", "bf16", "chunked_loss"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name == "chunked_loss" and value is None):
                raise TrainingImpossible(f"{name}={shown(value)} was asked for. Choose True or False.")
        if not isinstance(self.eval_lengths, (tuple, list)):
            raise TrainingImpossible(
                f"eval_lengths={shown(self.eval_lengths)} was asked for. Give several lengths, such as (256, 512)."
            )
        for length in self.eval_lengths:
            check_count("eval_lengths", length, 2, MAX_LENGTH)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def check_duration(steps: Any, epochs: Any) -> None:
    """Refuse a run without an end, or with two.

    Raises:
        TrainingImpossible: neither or both of steps and epochs are given, or there are no more than 0 epochs.
    """
    if (steps is None) == (epochs is None):
        raise TrainingImpossible(f"steps={steps} and epochs={epochs} were asked for. Choose one of the two.")
    if epochs is not None and not 0 < number(epochs) <= MAX_EPOCHS:
        raise TrainingImpossible(
            f"epochs={shown(epochs)} was asked for. Choose a number above 0 and up to {MAX_EPOCHS:,}."
        )


def check_stages(length: int, stages: int, packing: str) -> None:
    """Refuse rows that cannot be halved often enough, or whose documents are kept apart by their positions.

    Raises:
        TrainingImpossible: they cannot grow.
    """
    parts = 2 ** min(stages - 1, MAX_LENGTH.bit_length())
    if length % parts or length < 2 * parts:
        raise TrainingImpossible(
            f"length_stages={stages} was asked for, which cuts rows of {length} tokens into {parts} at first. "
            f"Choose fewer stages, or a length that is a multiple of {parts} and at least twice it."
        )
    if stages > 1 and packing == "separate":
        raise TrainingImpossible(
            "Rows that grow are cut within documents, and packing='separate' keeps documents whole. "
            "Choose packing='joined', or length_stages=1."
        )


def check_trackers(names: Any) -> None:
    """Refuse experiment trackers that transformers does not know, or whose package is not installed.

    Raises:
        TrainingImpossible: there is one.
        MissingExtra: a package is not installed.
    """
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise TrainingImpossible(f"report_to={shown(names)} was asked for. Give names, such as ('trackio',).")
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise TrainingImpossible(
                f"There is no experiment tracker {shown(name)}.{nearest(name, INTEGRATION_TO_CALLBACK)} "
                f"Choose one of {', '.join(sorted(INTEGRATION_TO_CALLBACK))}."
            )
        if name not in get_available_reporting_integrations():
            raise MissingExtra(f"Reporting to {name} needs its package, which is not installed. pip install {name}")


def check_count(name: str, value: Any, least: int, most: int) -> None:
    """Refuse a value that is no whole number from ``least`` to ``most``.

    Raises:
        TrainingImpossible: it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise TrainingImpossible(f"{name}={shown(value)} was asked for. Choose a whole number from {least} to {most}.")


def check_learning_rate(name: str, value: Any) -> None:
    """Refuse a learning rate that is not positive and finite, or absurdly large.

    Raises:
        TrainingImpossible: it is.
    """
    if not 0 < number(value) <= MAX_LEARNING_RATE:
        raise TrainingImpossible(
            f"{name}={shown(value)} was asked for. Choose a number above 0 and up to {MAX_LEARNING_RATE:g}."
        )


def number(value: Any) -> float:
    """A number unchanged; NaN, which lies in no range, for any other value."""
    return float("nan") if isinstance(value, bool) or not isinstance(value, (int, float)) else value
