"""Brief fine-tuning of a patched model with `Trainer`, PEFT and accelerate.

Rows of tokens, training methods, a loss computed in chunks, and runs that can be interrupted and resumed.
"""

from hf_posenc.core.lazy import explained_imports

with explained_imports():  # not lazily: the function `finetune` has the name of its module
    from hf_posenc.training.config import Training
    from hf_posenc.training.finetune import Tuned, finetune
    from hf_posenc.training.loss_curve import LossPoint
    from hf_posenc.training.methods import METHODS
    from hf_posenc.training.range_test import RangeTest, find_learning_rate
    from hf_posenc.training.recipes import RECIPES, FinetuneRecipe
    from hf_posenc.training.rows import HeldOutSplit, lengths_of

__all__ = [
    "METHODS",
    "RECIPES",
    "FinetuneRecipe",
    "HeldOutSplit",
    "LossPoint",
    "RangeTest",
    "Training",
    "Tuned",
    "find_learning_rate",
    "finetune",
    "lengths_of",
]
