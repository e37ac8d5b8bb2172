"""The plan of the demo: which schemes, at which lengths, how much text and how many keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_posenc.core.progress import ProgressCallback
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.schemes.entry import Entry
from hf_posenc.schemes.registry import scheme_class

FINE_TUNED = "yarn + LoRA"
ENTRIES = (
    Entry("unpatched", None),
    Entry("pi", "pi"),
    Entry("ntk", "ntk"),
    Entry("yarn", "yarn"),
    Entry("dynamic_ntk", "dynamic_ntk"),
    Entry("self_extend", "self_extend"),
    Entry("rerope", "rerope"),
    Entry("window", "window"),
)


@dataclass(frozen=True)
class DemoPlan:
    """Amount of measurement and training.

    Attributes:
        labels: labels of `ENTRIES`.
        multiples: context lengths, as multiples of the trained length.
        samples, scored: windows of text, and tokens scored in each.
        keys, depths: passkeys, and their relative depths in the filler text.
        steps: optimiser steps of the fine-tuning.
        text: the loss is measured on; None: held-out modules of the standard library.
        factor_per_length: whether schemes are patched anew for every length; the fine-tuned model, which has one
            factor, is then left out.
    """

    labels: tuple[str, ...]
    multiples: tuple[int, ...]
    samples: int
    scored: int
    keys: int
    depths: tuple[float, ...]
    steps: int
    text: MeasuredText | None = None
    factor_per_length: bool = False

    @property
    def entries(self) -> list[Entry]:
        """The zero-shot lines."""
        return [entry for entry in ENTRIES if entry.label in self.labels]

    @property
    def requests(self) -> int:
        """Number of requests per entry."""
        return len(self.multiples) * (self.samples + self.keys * len(self.depths))

    def measure(self, lengths: Sequence[int]) -> dict[str, Any]:
        """Arguments of `hf_posenc.eval.evaluate`."""
        return {
            "lengths": list(lengths), "samples": self.samples, "scored": self.scored, "keys": self.keys,
            "depths": self.depths, "text": self.text,
        }  # fmt: skip


FULL = DemoPlan(tuple(e.label for e in ENTRIES), (1, 2, 4, 8), 24, 64, 5, (0.0, 0.25, 0.5, 0.75, 1.0), steps=30)
QUICK = DemoPlan(("unpatched", "pi", "yarn", "dynamic_ntk", "rerope"), (1, 2, 4), 6, 64, 2, (0.0, 0.5, 1.0), steps=8)


def options_for(entry: Entry, length: int, trained: int) -> dict[str, Any]:
    """Options of an entry that is patched for a length, as a comparison chooses them (`Scheme.comparison_options`)."""
    if entry.scheme is None:
        return {}
    chosen = scheme_class(entry.scheme).comparison_options(factor=length / trained, trained_length=trained)
    return chosen | entry.options


def about_run(plan: DemoPlan, trained: int, lengths: list[int]) -> dict[str, Any]:
    """Collect the settings that the report names."""
    from importlib.metadata import version

    reach = {length: length if plan.factor_per_length else lengths[-1] for length in lengths}
    options = {
        entry.label: {str(length): options_for(entry, reach[length], trained) for length in lengths}
        for entry in plan.entries
    }
    return {
        "model": "starter llama",
        "trained_length": trained,
        "lengths": lengths,
        "factor_per_length": plan.factor_per_length,
        "samples": plan.samples,
        "scored_tokens": plan.scored,
        "text": None if plan.text is None else plan.text.label,
        "keys": plan.keys,
        "depths": list(plan.depths),
        "options": {label: chosen for label, chosen in options.items() if any(chosen.values())},
        "fine_tune_steps": None if plan.factor_per_length else plan.steps,
        "python": ".".join(map(str, sys.version_info[:3])),
        "versions": {name: version(name) for name in ("hf-posenc", "torch", "transformers", "lm_eval")},
    }


class DemoSteps:
    """Convert counts of scored requests to the completed fraction of the demo."""

    def __init__(self, report: ProgressCallback, entries: int) -> None:
        self.report, self.entries = report, entries
        self.entry, self.share, self.doing = 0, 0.0, ""

    def begin(self, doing: str) -> None:
        """Start an entry."""
        self.doing, self.share = doing, 0.0
        self.show()

    def advance(self, share: float) -> None:
        """Add a completed fraction of this entry."""
        self.share = min(1.0, self.share + share)
        self.show()

    def end(self) -> None:
        """Finish an entry."""
        self.entry, self.share = self.entry + 1, 0.0
        self.show()

    def show(self) -> None:
        """Report the completed fraction."""
        self.report(min(1.0, (self.entry + self.share) / self.entries), self.doing)
