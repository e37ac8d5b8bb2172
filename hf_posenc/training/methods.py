"""Training methods (full fine-tuning and LoRA) and their default learning rates, each with its source.

LoRA also trains copies of norms, input embeddings and position parameters. Without these, it does not reach the target
length; with them, it comes close to full training (Chen et al. 2023, "LongLoRA", arXiv:2309.12307, section 3.3).

Learning rates of long-context fine-tuning are an order of magnitude below those of adapters for short tasks: LongLoRA,
YaRN and Position Interpolation all train 7B and 13B models at 2e-5. Below a billion parameters there are no published
runs at new lengths. The rates there come from the papers of the methods, and from the models of this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import Conv1D

from hf_posenc.checkpoints.load import is_quantised
from hf_posenc.checkpoints.peft import without_peft_noise
from hf_posenc.errors import TrainingImpossible, nearest, shown
from hf_posenc.patching.float32 import keep_in_float32
from hf_posenc.training.config import OF_LORA, Training
from hf_posenc.training.trained_layers import fully_trained_modules, linear_layers

if TYPE_CHECKING:
    from peft import LoraConfig


@dataclass(frozen=True)
class LearningRate:
    """A peak learning rate of AdamW.

    Attributes:
        value: the rate.
        source: where it was published or measured; ``as given`` if the caller chose it.
    """

    value: float
    source: str


STARTERS = LearningRate(1e-3, "measured on the bundled models")
LORA_GPT2 = LearningRate(2e-4, "LoRA, GPT-2 medium and large, arXiv:2106.09685, appendix D")
BERT = LearningRate(5e-5, "BERT, arXiv:1810.04805, appendix A.3")
LONGLORA = LearningRate(2e-5, "LongLoRA, 7B and 13B, arXiv:2309.12307, section 4.1")
YARN = LearningRate(2e-5, "YaRN, 7B and 13B, arXiv:2309.00071, section 4.1")
LONGLORA_70B = LearningRate(1e-5, "LongLoRA, 70B, arXiv:2309.12307, section 4.1")
YARN_70B = LearningRate(1e-5, "YaRN, 70B, train.sh of the released code")

SMALL, BILLION, LARGE = 5e7, 1e9, 3e10
"""Largest numbers of parameters for which a rate is the default."""
LORA = ((SMALL, STARTERS), (BILLION, LORA_GPT2), (LARGE, LONGLORA), (inf, LONGLORA_70B))
FULL = ((SMALL, STARTERS), (BILLION, BERT), (LARGE, YARN), (inf, YARN_70B))
"""Pairs of a largest number of parameters and its rate."""
METHODS = {"full": FULL, "lora": LORA}
"""Default learning rates of each method."""


def lora(
    model: nn.Module,
    rank: int,
    *,
    alpha: float | None = None,
    target_modules: Sequence[str] = (),
    train_embeddings: bool = True,
) -> LoraConfig:
    """Configure LoRA on all linear layers of the base, or on ``target_modules`` (Hu et al. 2021, arXiv:2106.09685)."""
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
        **fully_trained_modules(model, train_embeddings=train_embeddings),
    )  # fmt: skip


def check_method(name: str, model: nn.Module) -> None:
    """Refuse full training of quantised weights, and LoRA on a model that has an adapter already."""
    if name == "full":
        if is_quantised(model):
            raise TrainingImpossible(
                f"The weights of this {type(model).__name__} are quantised, and full fine-tuning would train them. "
                "Choose method lora, or load the model without quantisation."
            )
        return
    if hasattr(model, "peft_config"):
        raise TrainingImpossible(
            f"This {type(model).__name__} has a PEFT adapter already, and method {name!r} would add another. "
            "Resume the run that trained it, or pass what model.merge_and_unload() returns."
        )


def peft_config_of(model: nn.Module, training: Training) -> LoraConfig | None:
    """Return the PEFT configuration for a model and the settings of a run; None for full fine-tuning."""
    if training.method == "full":
        return None
    return lora(model, **{name: getattr(training, name) for name in OF_LORA})


def adapted(model: nn.Module, config: LoraConfig | None) -> Any:
    """Add a PEFT adapter whose copies of modules train in float32; without ``config``, return the model itself."""
    if config is None:
        return model
    from peft import get_peft_model

    with without_peft_noise():
        wrapped = get_peft_model(model, config)
    keep_in_float32(wrapped)
    return wrapped


def learning_rate_for(method: str, parameters: int) -> LearningRate:
    """Return the default learning rate of a method for a number of model parameters."""
    return next(rate for most, rate in METHODS[method] if parameters <= most)
