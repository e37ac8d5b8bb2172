"""Result of `hf_posenc.advise`, as values and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from hf_posenc.insight.advise.memory import Memory, TrainingMemory, size
from hf_posenc.insight.advise.plan import Plan
from hf_posenc.insight.advise.recommendation import Recommendation, compare_command

WIDTH = 98
SHOWN = 4  # recommendations of each kind that are printed in full


@dataclass(frozen=True)
class Advice:
    """Recommendations for a model and a target length. Prints as a short text.

    Attributes:
        model: name or path of the model.
        model_type: ``model_type`` of its configuration.
        positions: its positional encoding, in words.
        trained_length: trained length in tokens.
        reach: context length of the unpatched model, its own scaling included.
        target_length: requested context length in tokens.
        memory: memory of weights and cache.
        zero_shot, training: recommendations, best first.
        refused: schemes that do not fit, each with the reason.
        warnings: one or two sentences each.
        training_memory: memory of a LoRA step on one row of the target length; None if unknown.
        plan: plan for the given cards, with its commands; None without cards, or if its memory is unknown.
    """

    model: str
    model_type: str
    positions: str
    trained_length: int
    reach: int
    target_length: int
    memory: Memory
    zero_shot: tuple[Recommendation, ...] = ()
    training: tuple[Recommendation, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    training_memory: TrainingMemory | None = None
    plan: Plan | None = None

    @property
    def factor(self) -> float:
        """Target length divided by trained length."""
        return self.target_length / self.trained_length

    @property
    def recommendations(self) -> tuple[Recommendation, ...]:
        """All recommendations, zero-shot first."""
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
                    lines.append(f"  {number}  {one.scheme}{self._head(one)}")
                    lines += [*_wrapped(one.reason, 5, 5), *_wrapped(one.patch, 5, 9)]
                if more := [one.scheme + self._evicts(one) for one in found[SHOWN:]]:
                    lines += _wrapped(f"then {', '.join(more)} (all lines: --json)", 2, 7)
        lines += _bullets("Does not fit", self._refusals())
        lines += self._try() if self.plan is None else plan_lines(self.plan)
        return "\n".join(lines)

    def _facts(self) -> list[str]:
        memory = self.memory
        reach = f", reaches {self.reach:,}" if self.reach != self.trained_length else ""
        cache = f"{size(memory.cache)} per text ({size(memory.token)} per token)" if memory.cache else "none"
        largest = memory.largest
        here = f"; {size(largest[0])} {largest[1]} here" if largest else ""
        step, training = self.training_memory, ""
        if step is not None:
            training = (
                f"LoRA, one row of {self.target_length:,}: {size(step.total)}, with gradient checkpointing "
                f"{size(step.total_checkpointed)} ({step.numbers:,} numbers trained)"
            )
        facts = {
            "positions": self.positions,
            "lengths": f"trained {self.trained_length:,}{reach}, target {self.target_length:,}, "
            f"factor {_ratio(self.factor)}",
            "memory": f"{memory.dtype}: weights {size(memory.weights)}, cache {cache}{here}",
            "training": training,
        }
        return [line for name, value in facts.items() if value for line in _wrapped(f"{name:<12}{value}", 2, 14)]

    def _evicts(self, one: Recommendation) -> str:
        """Remark on a scheme that keeps less than the whole text."""
        return "" if one.kept == self.target_length else f" (keeps {one.kept:,} tokens)"

    def _head(self, one: Recommendation) -> str:
        """Remark on missing evidence for this factor, and on the cache."""
        remarks = []
        if one.beyond and one.kept == self.target_length:
            remarks.append(f"not shown at {_ratio(self.target_length / one.trained)} ×")
        if self.memory.cache:
            kept = "" if one.kept == self.target_length else f", evicts all but {one.kept:,} tokens"
            remarks.append(f"cache {size(one.cache)}{kept}")
        return f" ({'; '.join(remarks)})" if remarks else ""

    def _try(self) -> list[str]:
        """Lines with the commands that compare the first recommendations, and fine-tune the first with training."""
        able = [one for one in self.recommendations if one.has_head]
        compared = [one for one in able if one.use == able[0].use][:SHOWN]
        lines = [compare_command(compared)] if compared else []
        lines += [one.finetune for one in able if one.use == "training"][:1]
        return ["", "Try", *(line for command in lines for line in _shell(command))] if lines else []

    def _refusals(self) -> list[str]:
        """One line per reason, with all schemes that it applies to."""
        reasons = dict.fromkeys(self.refused.values())
        return [f"{', '.join(k for k, v in self.refused.items() if v == why)}: {why}" for why in reasons]


def plan_lines(plan: Plan) -> list[str]:
    """Format what fits on the cards, and the commands."""
    cards, room = plan.cards, size(plan.cards.room)
    rows = "sharing each row" if plan.shared else "with a row each"
    where = f"{cards.count} cards, {rows}" if cards.count > 1 else "one card"
    lines = ["", f"Training {plan.scheme} on {where}; tensors have {room} of {size(cards.memory)}"]
    lines.append(f"  {'':<40}{f'a row of {plan.wanted:,}':>16}{'longest row':>16}")
    for way in plan.fits:
        name = f"{'QLoRA' if way.dtype == '4bit' else 'LoRA'}, {way.dtype}"
        name += ", gradient checkpointing" if way.checkpointing else ""
        lines.append(f"  {name:<40}{size(way.needed):>16}{f'{way.longest:,}' if way.longest else 'none':>16}")
    if not plan.commands:
        if not plan.row:
            lines.append("  No row fits that is longer than the trained length. Name more memory.")
        return lines
    if plan.row < plan.wanted:
        lines += _wrapped(
            f"The commands train rows of {plan.row:,}. With --recipe pose --set batch=1 in place of --set "
            f"length={plan.row}, rows of the trained length skip positions up to the target.",
            2, 2
        )  # fmt: skip
    lines += ["", f"The whole path, up to a server for {plan.served:,} tokens (for your own texts, replace PG-19)"]
    return [*lines, *(line for one in plan.commands for line in _shell(one))]


def _bullets(title: str, items: Iterable[str]) -> list[str]:
    lines = [line for item in items for line in _wrapped(f"- {item}", 2, 4)]
    return ["", title, *lines] if lines else []


def _shell(command: str) -> list[str]:
    """Wrap a long command with backslashes."""
    *lines, last = _wrapped(command, 2, 6)
    return [*(f"{line} \\" for line in lines), last]


def _wrapped(text: str, first: int, rest: int) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=" " * first, subsequent_indent=" " * rest, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _ratio(value: float) -> str:
    """Format a ratio to four digits, or a large one as an integer: ``"2.667"``, ``"262,144"``."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
