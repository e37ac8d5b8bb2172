"""A scheme that fits a model and a target length, with the commands that try it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hf_posenc.insight.advise.evidence import MeasuredRow


@dataclass(frozen=True)
class Recommendation:
    """A scheme that fits, with its numbers.

    Attributes:
        scheme: name or composition.
        use: ``zero-shot`` or ``training``.
        options: options of the scheme, by the rules of its paper.
        lengths: length arguments of `patch_model`: the target, and the trained length where the configuration is wrong.
        reason: what it does, what was measured, and the published claim.
        shown_factor: largest published target length divided by trained length; None if no figure is published.
        source: arXiv id or address of that claim; empty without a claim.
        beyond: whether the target exceeds all published and measured factors.
        cache: bytes of keys and values of one text at the target length.
        kept: tokens that the cache keeps; others are evicted.
        model: name of the model on the command line.
        trained: trained length in tokens.
        has_head: whether the checkpoint has a head, without which no command can measure or train it.
        checkpointing: whether training needs gradient checkpointing on this machine.
        evidence: zero-shot measurement of the scheme on a bundled model; None if there is none.
    """

    scheme: str
    use: str
    options: dict[str, Any]
    lengths: dict[str, int]
    reason: str
    shown_factor: float | None
    source: str
    beyond: bool
    cache: int
    kept: int
    model: str
    trained: int
    has_head: bool = True
    checkpointing: bool = False
    evidence: MeasuredRow | None = None

    @property
    def patch(self) -> str:
        """The call of `patch_model`, as Python code."""
        arguments = {**self.lengths, **self.options}
        call = f"patch_model(model, {', '.join([repr(self.scheme), *(f'{k}={v!r}' for k, v in arguments.items())])})"
        return call.replace("'", '"')

    @property
    def all_options(self) -> dict[str, Any]:
        """The options of the scheme, and the trained length where the configuration is wrong."""
        return {name: value for name, value in self.lengths.items() if name != "target_length"} | self.options

    @property
    def compare(self) -> str:
        """The command that compares the scheme with the unpatched model."""
        return compare_command([self])

    @property
    def entry(self) -> str:
        """The scheme with its options, in the form of ``--schemes``."""
        words = ",".join(f"{name}={value}" for name, value in self.all_options.items())
        return f"{self.scheme}:{words}" if words else self.scheme

    @property
    def scheme_words(self) -> list[str]:
        """The options of a command that name the scheme."""
        words = ["--scheme", self.scheme, "--target-length", str(self.lengths["target_length"])]
        return words + [word for name, value in self.all_options.items() for word in ("--option", f"{name}={value}")]

    @property
    def finetune(self) -> str:
        """The command that fine-tunes the model under the scheme."""
        return shlex.join(self.training_words(checkpointing=self.checkpointing))

    def training_words(self, *, checkpointing: bool) -> list[str]:
        """Return the words of the fine-tuning command."""
        words = ["hf-posenc", "finetune", "--model", self.model, *self.scheme_words]
        if checkpointing:
            words += ["--set", "gradient_checkpointing=true"]
        return words

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the commands that can run."""
        values = {**asdict(self), "patch": self.patch}
        if self.has_head:
            values["compare"] = self.compare
            if self.use == "training":
                values["finetune"] = self.finetune
        return values


def compare_command(compared: Sequence[Recommendation]) -> str:
    """Return the command that compares recommendations for one model with each other and with the unpatched model."""
    first = compared[0]
    lengths = ",".join(map(str, sorted({first.lengths["target_length"], *(one.trained for one in compared)})))
    schemes = [f"unpatched,{first.entry}", *(one.entry for one in compared[1:])]
    words = [word for entry in schemes for word in ("--schemes", entry)]
    return shlex.join(["hf-posenc", "compare", "--model", first.model, *words, "--lengths", lengths])
