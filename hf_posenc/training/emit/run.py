"""What every framework is told of a run, and what a framework is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_posenc.errors import TrainingImpossible
from hf_posenc.training.config import Training

DATA = "train.jsonl"
"""The documents, one record with the field ``text`` a line, beside the file of the run."""
OUTPUT = "trained"
"""The folder beside the file of the run that the framework writes to."""
CHECKPOINT, SCRIPT, ACCELERATE = "model", "run.py", "accelerate.yaml"


@dataclass(frozen=True)
class Run:
    """A fine-tuning run, in values that no framework has a name for yet.

    Attributes:
        model: name or folder of the checkpoint.
        config: entries that replace those of its configuration; empty where the checkpoint has them.
        training: settings, with the learning rate that was chosen.
        dtype: of the weights, such as ``bfloat16``.
        four_bit: whether the weights are loaded in four bits (QLoRA).
        modules: names of the linear layers that get matrices; empty for full fine-tuning.
        whole: names of the modules that are trained as a whole beside them.
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
        """LoRA's alpha, a whole number in all three frameworks.

        Raises:
            TrainingImpossible: It is none.
        """
        alpha = 2 * self.training.rank if self.training.alpha is None else self.training.alpha
        if alpha != int(alpha):
            raise TrainingImpossible(f"alpha={alpha} is no whole number, which other frameworks need. Choose another.")
        return int(alpha)


@dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
        title: its name, as its authors write it.
        file: name of the file that its command takes.
        settings: from a run to the content of that file.
        takes_config: whether the file can replace entries of the checkpoint's configuration.
        command: that starts the run; the name of the file follows.
        script: the same in Python, which comes after `enable_auto`.
        without: settings that it has no word for, besides those of the evaluation.
        more: further files beside it, by name.
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
        """The command that starts the run, in its folder.

        Args:
            restored: whether the script has to restore the scheme.
            cards: that share each row.
        """
        if restored:
            return f"accelerate launch {f'--config_file {ACCELERATE} ' if cards > 1 else ''}{SCRIPT}"
        return f"{self.command} {self.file}" + (f" --accelerate_config {ACCELERATE}" if cards > 1 else "")
