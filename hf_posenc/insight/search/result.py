"""The result of a search: everything that was tried, the chosen arm, and what the held-out text says of it."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, field
from typing import Any

from hf_posenc.eval.report.settings import names_of
from hf_posenc.eval.results.paired import FEWEST
from hf_posenc.insight.search.durations import duration
from hf_posenc.insight.search.tables import difference, held_out_table, plain, spread, trial_table
from hf_posenc.insight.search.trial import HeldOut, Trial
from hf_posenc.schemes.entry import UNPATCHED, Entry

SHOWN = 12
"""Arms in the printed table; all are in the files."""


@dataclass(frozen=True)
class SearchResult:
    """What a search has found. Prints as a text with tables.

    Attributes:
        about: model, lengths, texts, plan, costs and versions.
        trials: all arms, best first: those that came farther before the others, then by loss.
        chosen: the arm that the text to choose on speaks for.
        best_default: the best arm with default options, on that text.
        held_out: losses on the held-out text, which had no part in the choice.
    """

    about: dict[str, Any]
    trials: tuple[Trial, ...]
    chosen: Entry
    best_default: str
    held_out: tuple[HeldOut, ...] = field(default=())

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `hf_posenc.patch_model` besides the scheme: ``patch_model(model, chosen.scheme, **options)``."""
        return {
            **({} if self.chosen.lengths else {"target_length": self.about["target_length"]}),
            **self.chosen.options,
        }

    @property
    def patch(self) -> str:
        """The call of `hf_posenc.patch_model`."""
        given = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"patch_model(model, {json.dumps(self.chosen.scheme)}{given})"

    @property
    def command(self) -> str:
        """The command that compares the choice with the unpatched model, on the held-out windows where it can."""
        words = ",".join(f"{name}={json.dumps(value)}" for name, value in self.chosen.options.items())
        entry = f"{self.chosen.scheme}:{words}" if words else str(self.chosen.scheme)
        given = ["--model", self.about["model"], *self.about["compare"], "--schemes", f"unpatched,{entry}"]
        return shlex.join(["hf-posenc", "compare", *given, *self.measured])

    @property
    def measured(self) -> list[str]:
        """Options of `hf-posenc compare` that say what is measured."""
        about, own = self.about, self.of(self.chosen.label)
        if not self.judged_on_another or "--text" not in about["compare"] or own is None or own.loss is None:
            return ["--lengths", f"{about['trained_length']},{about['target_length']}"]
        options = {
            "--lengths": about["target_length"], "--tasks": about["task"], "--samples": own.windows,
            "--scored": about["scored"], "--seed": about["held_out_seed"],
        }  # fmt: skip
        return [str(word) for option in options.items() for word in option]

    @property
    def judged_on_another(self) -> bool:
        """Whether the held-out text is another than that to choose on, and not the end of it."""
        return str(self.about["held_out"]).startswith("another")

    def of(self, label: str) -> HeldOut | None:
        """The line of the held-out table with a label."""
        return next((line for line in self.held_out if line.label == label), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "about": self.about, "chosen": {**asdict(self.chosen), "patch": self.patch, "command": self.command},
            "best_default": self.best_default, "held_out": [asdict(line) for line in self.held_out],
            "trials": [asdict(trial) for trial in self.trials],
        }  # fmt: skip

    def __str__(self) -> str:
        held_out, trials = held_out_table(self.held_out, self.chosen.label), trial_table(self.trials, SHOWN)
        return "\n".join([*summary(self), "", *plain(held_out), "", *plain(trials)])


def summary(result: SearchResult) -> list[str]:
    """What was searched, what was chosen, and how sure that is."""
    about, plan = result.about, result.about["plan"]
    measured = [trial for trial in result.trials if trial.loss is not None]
    schemes = {trial.scheme for trial in measured}
    factor = about["target_length"] / about["trained_length"]
    lines = [
        f"{about['model']} at {about['target_length']:,} tokens ({factor:g} × {about['trained_length']:,}): "
        f"{len(measured)} arms of {len(schemes)} schemes and compositions in {duration(about['seconds'])} "
        f"(budget {duration(plan['budget'])})",
        f"chosen on {names_of(about['text'] or 'the default text')}; judged on {about['held_out']}"
        + (f" ({names_of(about['eval_text'])})" if result.judged_on_another else ""),
        "",
        f"Chosen: {result.chosen.label}",
        f"  {result.patch}",
        f"  {result.command}",
        *whole_text(result),
        *verdicts(result),
        *hidden(result),
    ]
    if about["cut"]:
        lines.append(
            "The machine was slower than when the plan was made: the last rungs were left out, and the choice rests on "
            "fewer windows."
        )
    own = result.of(result.chosen.label)
    if own is not None and 0 < own.windows < plan["held_out"]:
        lines.append(
            "The machine was slower than when the plan was made: the held-out text was measured on "
            f"{own.windows} windows instead of {plan['held_out']}."
        )
    if unmeasured := about.get("unmeasured"):
        lines.append(unmeasured)
    return lines


def whole_text(result: SearchResult) -> list[str]:
    """A remark on the printed command where it reads a text that the choice was partly made on."""
    if result.judged_on_another:
        return []
    return ["  The command measures the whole text, of which the choice was made on the first two thirds."]


def hidden(result: SearchResult) -> list[str]:
    """A remark on a choice that hides or evicts keys, with the best arm that does not."""
    chosen = next((trial for trial in result.trials if trial.label == result.chosen.label), None)
    if chosen is None or not chosen.hides_keys:
        return []
    other = next((trial for trial in result.trials if trial.loss is not None and not trial.hides_keys), None)
    best = "" if other is None else f" On the text to choose on, the best arm that sees every key is {other.label}."
    return [f"It hides or evicts older keys, which this loss hardly shows.{best} --all-keys leaves such schemes out."]


def verdicts(result: SearchResult) -> list[str]:
    """The held-out loss of the choice, how it was chosen, and what the held-out text says of the defaults."""
    own = result.of(result.chosen.label)
    if own is None or own.loss is None:
        return [f"The choice could not be measured on the held-out text. {'' if own is None else own.note}".rstrip()]
    loss = f"Held-out loss {own.loss:.3f}{spread(own.stderr)} nats/token on {own.windows} windows."
    kept = result.chosen.label == result.best_default
    return [loss, kept_default(result) if kept else against_default(result), against_all(result)]


def kept_default(result: SearchResult) -> str:
    """Why a default was chosen; whether other options were tried at all."""
    if any(trial.options for trial in result.trials if trial.loss is not None):
        return "On the text to choose on, no other options were clearly better than these defaults, so they are kept."
    return "Only arms with default options were tried; a longer --budget tries others."


def against_default(result: SearchResult) -> str:
    """The difference of the choice from the best default."""
    other = result.of(result.best_default)
    if other is None or other.difference is None:
        return "The best default could not be measured on the held-out text, so the choice is not compared with it."
    d = other.difference
    if d.p is None:
        return f"Minus the best default, {other.label}: {difference(other)}, on too few documents to be sure of."
    sure = {"better": "surely better than", "worse": "surely worse than"}.get(d.verdict, "not surely different from")
    return f"That is {sure} the best default, {other.label}: {difference(other)} (95 % interval)."


def against_all(result: SearchResult) -> str:
    """Which defaults are better than the choice on the held-out text."""
    compared = [line for line in result.held_out if line.difference is not None and line.label != UNPATCHED]
    if not compared:
        return "No other default could be measured on the held-out text, so the choice is compared with none."
    if all(line.difference.p is None for line in compared if line.difference is not None):
        return f"Defaults compared there: {len(compared)}; fewer than {FEWEST} documents show none to be surely better."
    better = [line.label for line in compared if line.difference is not None and line.difference.verdict == "worse"]
    return f"Defaults compared there: {len(compared)}; surely better than the choice: {', '.join(better) or 'none'}."
