"""Default learning rates by method and size of the model, each with its source.

The rates of long-context fine-tuning are an order of magnitude below those of adapters for short tasks: LongLoRA, YaRN
and Position Interpolation all train 7B and 13B models at 2e-5. Below a billion parameters there are no published runs
at new lengths; the rates are those of the methods' own papers, and of this package's starters.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from torch import nn

from hf_posenc.training.config import Training


@dataclass(frozen=True)
class LearningRate:
    """A peak learning rate of AdamW.

    Attributes:
        value: the rate.
        source: where it was published or measured; ``as given`` where the caller has chosen it.
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
"""Numbers of parameters up to which a rate holds."""
ADAPTERS = ((SMALL, STARTERS), (BILLION, LORA_GPT2), (LARGE, LONGLORA), (inf, LONGLORA_70B))
RATES = {
    "lora": ADAPTERS,
    "dora": ADAPTERS,
    "lora_plus": ADAPTERS,
    "full": ((SMALL, STARTERS), (BILLION, BERT), (LARGE, YARN), (inf, YARN_70B)),
}
"""Method to pairs of a number of parameters and the rate up to it."""


def learning_rate_for(method: str, parameters: int) -> LearningRate:
    """The default learning rate of a method for a model of so many parameters; of an unknown method, LoRA's."""
    return next(rate for most, rate in RATES.get(method, ADAPTERS) if parameters <= most)


def chosen_rate(training: Training, model: nn.Module) -> LearningRate:
    """The learning rate that was given, or the default of the method for a model of this size."""
    if training.learning_rate is not None:
        return LearningRate(training.learning_rate, "as given")
    return learning_rate_for(training.method, parameter_count(model))


def parameter_count(model: nn.Module) -> int:
    """The parameters of a model, those that are shared counted once, and quantised ones as what they stand for."""
    counts = {id(weight): weight.numel() for weight in model.parameters()}
    counted = getattr(model, "num_parameters", None)  # transformers counts two 4-bit weights a byte
    return int(counted()) if callable(counted) else sum(counts.values())
