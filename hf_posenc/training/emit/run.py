"""Values of a run that every framework needs, and the description of a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_posenc.errors import TrainingImpossible
from hf_posenc.training.config import Training

DATA = "train.jsonl"
"""File of the documents, beside the file of the run: JSON Lines with the field ``text``."""
OUTPUT = "trained"
"""Folder that the framework writes to, beside the file of the run."""
CHECKPOINT, SCRIPT, ACCELERATE = "model", "run.py", "accelerate.yaml"


@dataclass(frozen=True)
class Run:
    """A fine-tuning run, independent of the framework.

    Attributes:
        model: name or folder of the checkpoint.
        config: entries that replace those of the checkpoint's configuration.
        training: settings, with the chosen learning rate.
        dtype: dtype of the weights, such as ``bfloat16``.
        four_bit: whether the weights are loaded in 4 bits (QLoRA).
        modules: names of the linear layers with LoRA matrices; empty for full fine-tuning.
        whole: names of the modules that are fully trained beside LoRA.
        cards: GPUs that share each row.
    """

    model: str
    config: Mapping[str, Any]
    training: Training
    dtype: str
    four_bit: bool = False
    modules: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    cards: int = 1

    @property
    def alpha(self) -> int:
        """Alpha of LoRA, an integer in all three frameworks.

        Raises:
            TrainingImpossible: alpha is not an integer.
        """
        alpha = 2 * self.training.rank if self.training.alpha is None else self.training.alpha
        if alpha != int(alpha):
            raise TrainingImpossible(f"alpha={alpha} is no whole number, which other frameworks need. Choose another.")
        return int(alpha)

    @property
    def lora(self) -> dict[str, Any]:
        """Settings of LoRA, by the names that TRL and Axolotl give them; none for full fine-tuning."""
        if not self.modules:
            return {}
        return {
            "lora_r": self.training.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "lora_target_modules": list(self.modules),
            "lora_modules_to_save": list(self.whole) or None,
        }


@dataclass(frozen=True)
class Framework:
    """A training framework.

    Attributes:
        title: name of the framework, as its authors write it.
        file: name of the file that its command reads.
        settings: function from a run to the content of that file; values of None are left out.
        takes_config: whether the file can replace entries of the checkpoint's configuration.
        command: command that starts the run; the name of the file follows it.
        script: the same in Python, run after `enable_auto`.
        without: settings of `Training` that the framework lacks, besides those of the evaluation.
        more: content of additional files, by name.
        shares_rows: whether several cards can share a row.
    """

    title: str
    file: str
    settings: Callable[[Run], dict[str, Any]]
    takes_config: bool
    command: str
    script: str
    without: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    shares_rows: bool = False

    def start(self, *, restored: bool, cards: int) -> str:
        """Return the command that starts the run in its folder.

        Args:
            restored: whether the script must restore the scheme.
            cards: number of GPUs that share each row.
        """
        if restored:
            return f"accelerate launch {f'--config_file {ACCELERATE} ' if cards > 1 else ''}{SCRIPT}"
        return f"{self.command} {self.file}" + (f" --accelerate_config {ACCELERATE}" if cards > 1 else "")
