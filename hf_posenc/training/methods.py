"""Training methods: full fine-tuning, or those of PEFT.

In addition to their own parameters, LoRA and similar methods train whole copies of norms, input embeddings and
position parameters: LoRA alone does not reach the target length, and with these it comes close to full training (Chen
et al. 2023, "LongLoRA", arXiv:2309.12307, section 3.3). Prompts and prefixes train nothing of the model itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import Conv1D

from hf_posenc.checkpoints.load import is_quantised
from hf_posenc.errors import TrainingImpossible, nearest, shown
from hf_posenc.patching.preconditions.weights import check_rank_memory
from hf_posenc.patching.state import base_model_of
from hf_posenc.training.trained_layers import (
    base_modules,
    fully_trained_modules,
    linear_layers,
    norm_layers,
    scheme_parameter_names,
)

if TYPE_CHECKING:
    from peft import LoraConfig, PeftConfig
    from torch.optim import Optimizer

    from hf_posenc.training.config import Training

TRAINED_COPIES = 4
"""Of every number that AdamW trains: itself, its gradient, and two moments."""
Configure = Callable[..., "PeftConfig"]


@dataclass(frozen=True)
class Method:
    """A training method.

    Attributes:
        configure: from the model and the rank to what PEFT puts around it, with ``train_embeddings=``, ``alpha=`` and
            ``target_modules=`` where the method has low-rank matrices; None trains the model itself.
        optimiser: from the trainable model, learning rate and weight decay; None leaves the choice to `Trainer`.
        numbers: that a rank of 1 adds to a model.
        virtual_tokens: whether text grows by ``rank`` tokens that only the model sees.
        low_rank: whether it puts low-rank matrices beside layers, and can train the embeddings as well.
    """

    configure: Configure | None
    optimiser: Callable[[Any, float, float], Optimizer] | None = None
    numbers: Callable[[nn.Module], int] = lambda model: 0
    virtual_tokens: bool = False
    low_rank: bool = False


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


def ia3(model: nn.Module, rank: int) -> PeftConfig:
    """One factor a channel of keys, values and the feed-forward layer (Liu et al. 2022, arXiv:2205.05638)."""
    from peft import IA3Config

    kept = norm_layers(model) | ({"posenc"} if scheme_parameter_names(model) else set())
    return IA3Config(  # which cannot keep a tied layer tied: embeddings are left out
        modules_to_save=sorted(kept), fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules())
    )


def prompt(model: nn.Module, rank: int) -> PeftConfig:
    """Trained embeddings in front of the text (Lester et al. 2021, arXiv:2104.08691)."""
    from peft import PromptTuningConfig

    return PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=rank)


def prefix(model: nn.Module, rank: int) -> PeftConfig:
    """Trained keys and values in front of the text, in every layer (Li and Liang 2021, arXiv:2101.00190)."""
    from peft import PrefixTuningConfig

    return PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=rank)


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


def embedding_width(model: nn.Module) -> int:
    """Width of an embedding."""
    return int(base_model_of(model)[0].get_input_embeddings().weight.shape[-1])


def key_value_width(model: nn.Module) -> int:
    """Width of the keys and values of all layers, where every head has its own."""
    config: Any = base_model_of(model)[0].config
    return 2 * embedding_width(model) * int(config.num_hidden_layers)


METHODS = {
    "full": Method(None),
    "lora": Method(lora, numbers=low_rank_size, low_rank=True),
    "dora": Method(dora, numbers=low_rank_size, low_rank=True),
    "lora_plus": Method(lora, optimiser=lora_plus_optimiser, numbers=low_rank_size, low_rank=True),
    "ia3": Method(ia3),
    "prompt": Method(prompt, numbers=embedding_width, virtual_tokens=True),
    "prefix": Method(prefix, numbers=key_value_width, virtual_tokens=True),
}


def method_of(name: str, model: nn.Module, *, causal: bool, rank: int = 1) -> Method:
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
        check_rank_memory(rank, method.numbers(model), copies=TRAINED_COPIES)
    if method.virtual_tokens and not causal:
        raise TrainingImpossible(f"PEFT trains no {name} for a masked language model. Choose lora.")
    if method.virtual_tokens and (learned := scheme_parameter_names(model)):
        raise TrainingImpossible(
            f"Method {name!r} trains virtual tokens, at rates too high for the position parameter {learned[0]!r}, "
            "which needs training too. Choose lora, or another scheme."
        )
    return method


def peft_config_of(method: Method, model: nn.Module, training: Training) -> PeftConfig | None:
    """The PEFT configuration of a method for a model and the settings of a run; None for full fine-tuning."""
    if method.configure is None:
        return None
    if not method.low_rank:
        return method.configure(model, training.rank)
    names = ("alpha", "target_modules", "train_embeddings")
    return method.configure(model, training.rank, **{name: getattr(training, name) for name in names})


def unused_settings(method: Method) -> list[str]:
    """Settings of `Training` that a method has no use for; the rank is also the number of virtual tokens."""
    if method.low_rank:
        return []
    return [
        *("alpha", "target_modules"),
        *(["train_embeddings"] if method.configure is None else []),
        *([] if method.virtual_tokens else ["rank"]),
    ]


def check_settings(training: Training) -> None:
    """Refuse settings that the method of a run has no use for.

    Raises:
        TrainingImpossible: one differs from its default.
    """
    defaults = type(training)(length=2, steps=1)
    for name in unused_settings(METHODS[training.method]):
        if getattr(training, name) != getattr(defaults, name):
            raise TrainingImpossible(
                f"{name}={shown(getattr(training, name))} was asked for, and method {training.method!r} has no use for "
                "it. Choose method lora, or leave it out."
            )
