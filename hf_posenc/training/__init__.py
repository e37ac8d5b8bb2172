"""Brief fine-tuning of a patched model with `Trainer`, PEFT and accelerate.

Text as rows of tokens, training methods, a loss that never holds all logits, and runs that can be killed and resumed.
"""

from hf_posenc.training.config import Training
from hf_posenc.training.finetune import Tuned, finetune
from hf_posenc.training.loss_curve import Point
from hf_posenc.training.methods import METHODS
from hf_posenc.training.recipes import RECIPES, Recipe
from hf_posenc.training.rows import lengths_of

__all__ = ["METHODS", "RECIPES", "Point", "Recipe", "Training", "Tuned", "finetune", "lengths_of"]
