"""Training methods: full fine-tuning, or those of PEFT.

In addition to their own parameters, LoRA and similar methods train whole copies of norms, input embeddings and
position parameters: LoRA alone does not reach the target length, and with these it comes close to full training (Chen
et al. 2023, "LongLoRA", arXiv:2309.12307, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import Conv1D

from hf_posenc.checkpoints.load import is_quantised
from hf_posenc.errors import TrainingImpossible, nearest, shown
from hf_posenc.patching.weights import check_rank_memory
from hf_posenc.training.trained_layers import (
    base_modules,
    fully_trained_modules,
    linear_layers,
)

if TYPE_CHECKING:
    from peft import LoraConfig, PeftConfig
    from torch.optim import Optimizer

    from hf_posenc.training.config import Training

TRAINED_COPIES = 4
"""Of every number that AdamW trains: itself, its gradient, and two moments."""
OF_LORA = ("alpha", "target_modules", "train_embeddings")
"""Settings of `Training` that are those of LoRA and its kin."""
Configure = Callable[..., "PeftConfig"]


@dataclass(frozen=True)
class Method:
    """A training method.

    Attributes:
        configure: from the model and the rank to what PEFT puts around it, with ``train_embeddings=``, ``alpha=`` and
            ``target_modules=``; None trains the model itself.
        optimiser: from the trainable model, learning rate and weight decay; None leaves the choice to `Trainer`.
    """

    configure: Configure | None
    optimiser: Callable[[Any, float, float], Optimizer] | None = None


def lora(
    model: nn.Module,
    rank: int,
    *,
    alpha: float | None = None,
    target_modules: Sequence[str] = (),
    train_embeddings: bool = True,
    **more: Any,
) -> LoraConfig:
    """LoRA on every linear layer of the base, or those called ``target_modules`` (Hu et al. 2021, arXiv:2106.09685).

    Raises:
        TrainingImpossible: there is no linear layer of that name.
    """
    from peft import LoraConfig

    linear = linear_layers(model)
    for name in target_modules:
        if name not in linear:
            raise TrainingImpossible(
                f"This model has no linear layer {shown(name)}.{nearest(name, linear)} It has {', '.join(linear)}."
            )
    return LoraConfig(
        r=rank, lora_alpha=2 * rank if alpha is None else alpha, lora_dropout=0.0,
        target_modules=list(target_modules) or linear,
        exclude_modules=r".*\bposenc\b.*", fan_in_fan_out=any(isinstance(m, Conv1D) for m in model.modules()),
        **fully_trained_modules(model, train_embeddings=train_embeddings), **more,
    )  # fmt: skip


def dora(model: nn.Module, rank: int, **settings: Any) -> LoraConfig:
    """LoRA of the direction, with the magnitude trained separately (Liu et al. 2024, arXiv:2402.09353)."""
    return lora(model, rank, use_dora=True, **settings)


def lora_plus_optimiser(model: Any, learning_rate: float, weight_decay: float) -> Optimizer:
    """AdamW at 16 times the rate for LoRA's B and for vectors such as norms (Hayou et al. 2024, arXiv:2402.12354)."""
    from peft.optimizers import create_loraplus_optimizer

    return create_loraplus_optimizer(
        model, torch.optim.AdamW, lr=learning_rate, loraplus_lr_ratio=16, loraplus_weight_decay=weight_decay
    )


def low_rank_size(model: nn.Module) -> int:
    """Rows and columns of all linear layers: LoRA has a vector for each side of each."""
    linear = (m.weight for _, m in base_modules(model) if isinstance(m, (nn.Linear, Conv1D)))
    return sum(sum(weight.shape) for weight in linear)


METHODS = {
    "full": Method(None),
    "lora": Method(lora),
    "dora": Method(dora),
    "lora_plus": Method(lora, optimiser=lora_plus_optimiser),
}


def method_of(name: str, model: nn.Module, *, rank: int = 1) -> Method:
    """The method called ``name``.

    Raises:
        TrainingImpossible: the method cannot train this model.
        NoMemory: matrices of this rank do not fit into memory.
    """
    method = METHODS[name]
    if method.configure is not None and hasattr(model, "peft_config"):
        raise TrainingImpossible(
            f"This {type(model).__name__} has a PEFT adapter already, and method {name!r} would put on another. "
            "Go on with the run that trained it (resume), or pass what model.merge_and_unload() returns."
        )
    if method.configure is None and is_quantised(model):
        raise TrainingImpossible(
            f"The weights of this {type(model).__name__} are quantised, and full fine-tuning would train them. "
            "Choose method lora, or load the model without quantisation."
        )
    if method.configure is not None:
        check_rank_memory(rank, low_rank_size(model), copies=TRAINED_COPIES)
    return method


def peft_config_of(method: Method, model: nn.Module, training: Training) -> PeftConfig | None:
    """The PEFT configuration of a method for a model and the settings of a run; None for full fine-tuning."""
    if method.configure is None:
        return None
    return method.configure(model, training.rank, **{name: getattr(training, name) for name in OF_LORA})


def check_settings(training: Training) -> None:
    """Refuse settings of LoRA in full fine-tuning, which has no use for them.

    Raises:
        TrainingImpossible: one differs from its default.
    """
    if METHODS[training.method].configure is not None:
        return
    defaults = type(training)(length=2, steps=1)
    for name in ("rank", *OF_LORA):
        if getattr(training, name) != getattr(defaults, name):
            raise TrainingImpossible(
                f"{name}={shown(getattr(training, name))} was asked for, and method {training.method!r} has no use for "
                "it. Choose method lora, or leave it out."
            )
