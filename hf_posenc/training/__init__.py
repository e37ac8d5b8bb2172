"""Brief fine-tuning of a patched model: rows of text, ways to train, a loss that never holds all logits, runs that can
be killed.

`Trainer`, PEFT and accelerate do the work; here are their orders.
"""

from hf_posenc.training.config import Training
from hf_posenc.training.finetune import Tuned, finetune, lengths_of
from hf_posenc.training.loss_curve import Point
from hf_posenc.training.methods import METHODS

__all__ = ["METHODS", "Point", "Training", "Tuned", "finetune", "lengths_of"]
