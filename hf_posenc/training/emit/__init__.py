"""A fine-tuning run as a file for another framework: TRL, Axolotl or LLaMA-Factory.

A scheme that is configuration alone goes into the file, or into the checkpoint beside it. Any other scheme goes into a
checkpoint that this package restores, and a script of a few lines starts the framework with `enable_auto`.
"""

from hf_posenc.training.emit.emit import FRAMEWORKS, Emitted, emit_run

__all__ = ["FRAMEWORKS", "Emitted", "emit_run"]
