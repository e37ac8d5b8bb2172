"""Result of `hf_posenc.advise`: recommended schemes with the commands that try them, as values and as text."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hf_posenc.insight.advise.evidence import MeasuredRow
from hf_posenc.insight.advise.memory import Memory, TrainingMemory, size

WIDTH = 98
SHOWN = 4  # recommendations of each kind that are printed in full


@dataclass(frozen=True)
class Recommendation:
    """A scheme that fits, with its numbers.

    Attributes:
        scheme: name or composition.
        use: ``zero-shot`` or ``training``.
        options: of the scheme, by the paper's rules.
        lengths: length arguments of `patch_model`: the target, and the trained length where the configuration is wrong.
        reason: what it does, what was measured, and the published claim.
        shown_factor: the largest published target over trained length; None where no figure is published.
        source: of that claim, an arXiv id or an address; empty without one.
        beyond: whether this target is beyond all published and measured ones.
        cache: bytes of keys and values of one text at the target length.
        kept: tokens the cache holds; others are evicted.
        model: as on the command line.
        trained: tokens the weights saw.
        restore: whether the checkpoint's own scheme must be removed first.
        learning_rate: of LoRA on a model of this size; see `hf_posenc.training.methods`.
        checkpointing: whether training needs gradient checkpointing on this machine.
        evidence: what was measured of the scheme on a bundled model, without training; None where nothing was.
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
    restore: bool = False
    learning_rate: float | None = None
    checkpointing: bool = False
    evidence: MeasuredRow | None = None

    @property
    def patch(self) -> str:
        """The call of `patch_model`."""
        given = {**self.lengths, **self.options}
        call = f"patch_model(model, {', '.join([repr(self.scheme), *(f'{k}={v!r}' for k, v in given.items())])})"
        call = call.replace("'", '"')
        return f"unpatch_model(model); {call}" if self.restore else call

    @property
    def compare(self) -> str:
        """The command that compares it with the unpatched model."""
        return compare_command([self])

    @property
    def entry(self) -> str:
        """The scheme with its options, as ``--schemes`` takes it."""
        options = {name: value for name, value in self.lengths.items() if name != "target_length"} | self.options
        words = ",".join(f"{name}={value}" for name, value in options.items())
        return f"{self.scheme}:{words}" if words else self.scheme

    @property
    def finetune(self) -> str:
        """The command that fine-tunes it."""
        words = ["hf-posenc", "finetune", "--model", self.model, "--scheme", self.scheme]
        for name, value in self.lengths.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        for name, value in self.options.items():
            words += ["--option", f"{name}={value}"]
        if self.learning_rate is not None:
            words += ["--learning-rate", f"{self.learning_rate:g}"]
        if self.checkpointing:
            words += ["--set", "gradient_checkpointing=true"]
        return shlex.join(words)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; without commands where a scheme must be removed first, which no command does."""
        names = [] if self.restore else ["compare", *(["finetune"] if self.use == "training" else [])]
        return {**asdict(self), **{name: getattr(self, name) for name in ("patch", *names)}}


def compare_command(compared: Sequence[Recommendation]) -> str:
    """The command that compares recommendations for one model with the unpatched model, and with each other."""
    first = compared[0]
    lengths = ",".join(map(str, sorted({first.lengths["target_length"], *(one.trained for one in compared)})))
    schemes = [f"unpatched,{first.entry}", *(one.entry for one in compared[1:])]
    words = [word for entry in schemes for word in ("--schemes", entry)]
    return shlex.join(["hf-posenc", "compare", "--model", first.model, *words, "--lengths", lengths])


@dataclass(frozen=True)
class Advice:
    """Trained length of a model, and schemes that extend it to another. Prints as a short text.

    Attributes:
        model: name or path as given.
        model_type: of its configuration.
        positions: its positional encoding, in words.
        trained_length: tokens the weights saw; None where the configuration does not say.
        reach: context length of the unchanged model, with a scaling or scheme it has already.
        target_length: requested tokens.
        memory: of weights and cache, in bytes.
        zero_shot, training: recommendations, best first.
        refused: scheme to why it does not fit here.
        others: further schemes that are defined here, without published evidence.
        warnings: what is not feasible, or has no evidence.
        supported: whether there is an adapter for it.
        learning_rate, rate_source: of LoRA on a model of this size, and where it was published.
        training_memory: of a LoRA step on one row of the target length; None where it is not known.
    """

    model: str
    model_type: str
    positions: str
    trained_length: int | None
    reach: int | None
    target_length: int
    memory: Memory
    zero_shot: tuple[Recommendation, ...] = ()
    training: tuple[Recommendation, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    supported: bool = True
    learning_rate: float | None = None
    rate_source: str = ""
    training_memory: TrainingMemory | None = None

    @property
    def factor(self) -> float | None:
        """Target length over trained length."""
        return None if self.trained_length is None else self.target_length / self.trained_length

    @property
    def recommendations(self) -> tuple[Recommendation, ...]:
        """All recommendations, zero-shot ones first."""
        return (*self.zero_shot, *self.training)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        lists = {name: [r.to_dict() for r in getattr(self, name)] for name in ("zero_shot", "training")}
        return {**asdict(self), **lists, "factor": self.factor}

    def __str__(self) -> str:
        lines = [f"{self.model} ({self.model_type}) at {self.target_length:,} tokens", *self._facts()]
        lines += _bullets("Warnings", self.warnings)
        for title, found in (("Zero-shot", self.zero_shot), ("With training", self.training)):
            if found:
                lines += ["", title]
                for number, one in enumerate(found[:SHOWN], 1):
                    lines += self._lines_of(number, one)
                if more := [one.scheme + self._evicts(one) for one in found[SHOWN:]]:
                    lines += _wrapped(f"then {', '.join(more)} (all lines: --json)", 2, 7)
        lines += _bullets("Does not fit", self._refusals())
        return "\n".join([*lines, *self._try()])

    def _facts(self) -> list[str]:
        memory, times = self.memory, self.factor
        trained = "unknown" if self.trained_length is None else f"{self.trained_length:,}"
        reach = f", reaches {self.reach:,}" if self.reach not in (None, self.trained_length) else ""
        factor = "" if times is None else f", factor {_ratio(times)}"
        cache = f"{size(memory.cache)} a text ({size(memory.token)} a token)" if memory.cache else "none"
        largest = memory.largest
        here = f"; {size(largest[0])} {largest[1]} here" if largest else ""
        facts = {
            "positions": self.positions,
            "lengths": f"trained {trained}{reach}, target {self.target_length:,}{factor}",
            "memory": f"{memory.dtype}: weights {size(memory.weights)}, cache {cache}{here}",
            "training": self._training(),
        }
        return [line for name, value in facts.items() if value for line in _wrapped(f"{name:<12}{value}", 2, 14)]

    def _training(self) -> str:
        """Memory of a LoRA run, where it is known, and its learning rate."""
        if self.learning_rate is None:
            return ""
        rate, step = f"learning rate {self.learning_rate:g} ({self.rate_source})", self.training_memory
        if step is None:
            return f"LoRA: {rate}"
        return (
            f"LoRA, one row of {self.target_length:,}: {size(step.total)}, with gradient checkpointing "
            f"{size(step.total_checkpointed)} ({step.numbers:,} numbers trained); {rate}"
        )

    def _lines_of(self, number: int, one: Recommendation) -> list[str]:
        head = f"  {number}  {one.scheme}{self._head(one)}"
        return [head, *_wrapped(one.reason, 5, 5), *_wrapped(one.patch, 5, 9)]

    def _evicts(self, one: Recommendation) -> str:
        """What stands behind a scheme that is only named, where it keeps less than the whole text."""
        return "" if one.kept == self.target_length else f" (keeps {one.kept:,} tokens)"

    def _head(self, one: Recommendation) -> str:
        """Whether a recommendation was shown this far, and its cache."""
        found = []
        if one.beyond and one.kept == self.target_length:
            found.append(f"not shown at {_ratio(self.target_length / one.trained)} ×")
        if self.memory.cache:
            kept = "" if one.kept == self.target_length else f", evicts all but {one.kept:,} tokens"
            found.append(f"cache {size(one.cache)}{kept}")
        return f" ({'; '.join(found)})" if found else ""

    def _try(self) -> list[str]:
        """The commands that measure the first recommendations, without training and with."""
        able = [one for one in self.recommendations if not one.restore]
        compared = [one for one in able if one.use == able[0].use][:SHOWN]
        lines = [compare_command(compared)] if compared else []
        lines += [one.finetune for one in able if one.use == "training"][:1]
        return ["", "Try", *(line for command in lines for line in _shell(command))] if lines else []

    def _refusals(self) -> list[str]:
        """One line per reason, with all schemes that share it."""
        reasons = dict.fromkeys(self.refused.values())
        return [f"{', '.join(k for k, v in self.refused.items() if v == why)}: {why}" for why in reasons]


def _bullets(title: str, items: Iterable[str]) -> list[str]:
    lines = [line for item in items for line in _wrapped(f"- {item}", 2, 4)]
    return ["", title, *lines] if lines else []


def _shell(command: str) -> list[str]:
    """Break a long command with backslashes."""
    *lines, last = _wrapped(command, 2, 6)
    return [*(f"{line} \\" for line in lines), last]


def _wrapped(text: str, first: int, rest: int) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=" " * first, subsequent_indent=" " * rest, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _ratio(value: float) -> str:
    """A ratio to four digits, and a large one as a whole number: ``"2.667"``, ``"262,144"``."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
