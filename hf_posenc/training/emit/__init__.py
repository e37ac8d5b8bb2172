"""Write a fine-tuning run as a file for another framework: TRL, Axolotl or LLaMA-Factory.

A scheme that transformers can express by configuration goes into the file, or into a plain checkpoint beside it. Any
other scheme goes into a checkpoint that this package restores, and a short script starts the framework with
`enable_auto`.
"""

from hf_posenc.training.emit.emit import Emitted, emit_run
from hf_posenc.training.emit.frameworks import FRAMEWORKS

__all__ = ["FRAMEWORKS", "Emitted", "emit_run"]
