"""Demo on real text: a small trained Llama, eight positional schemes, four context lengths, one fine-tuning.

    load the starter → patch → measure through lm-eval → unpatch → the next scheme → LoRA on YaRN → report

Schemes are patched separately for each length with ``factor = length / trained length``, their best setting.
The fine-tuned YaRN has one factor for all lengths, as a deployed model would.

A few lines over the limit: the plan of the demo, its progress and its measurements belong together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_posenc.eval.report.report import write_report
from hf_posenc.eval.results.rows import Row, write_json
from hf_posenc.eval.texts.measured_text import MeasuredText, measured_text
from hf_posenc.eval.texts.stdlib_source import TRAINING, module_text
from hf_posenc.schemes.entry import Entry
from hf_posenc.texts import TextSource

ProgressCallback = Callable[[float, str], None]
"""Called with the completed fraction of the work and a description of the current step."""

FINE_TUNED = "yarn + LoRA"


ENTRIES = (
    Entry("unpatched", None),
    Entry("pi", "pi"),
    Entry("ntk", "ntk"),
    Entry("yarn", "yarn"),
    Entry("dynamic_ntk", "dynamic_ntk", {"granularity": 64}),
    Entry("self_extend", "self_extend"),
    Entry("rerope", "rerope"),
    Entry("window", "window"),
)


@dataclass(frozen=True)
class Plan:
    """Amount of measurement and training.

    Attributes:
        labels: labels of `ENTRIES`.
        multiples: context lengths, as multiples of the trained length.
        samples, scored: windows of text, and tokens scored in each.
        keys, depths: passkeys, and their relative depths in the filler text.
        steps: optimiser steps of the fine-tuning.
        text: the loss is measured on; None: held-out modules of the standard library.
    """

    labels: tuple[str, ...]
    multiples: tuple[int, ...]
    samples: int
    scored: int
    keys: int
    depths: tuple[float, ...]
    steps: int
    text: MeasuredText | None = None

    def measure(self, lengths: Sequence[int]) -> dict[str, Any]:
        """Arguments of `hf_posenc.eval.evaluate`."""
        return {
            "lengths": list(lengths), "samples": self.samples, "scored": self.scored, "keys": self.keys,
            "depths": self.depths, "text": self.text,
        }  # fmt: skip

    @property
    def requests(self) -> int:
        """Number of requests per entry."""
        return len(self.multiples) * (self.samples + self.keys * len(self.depths))


FULL = Plan(tuple(e.label for e in ENTRIES), (1, 2, 4, 8), 24, 64, 5, (0.0, 0.25, 0.5, 0.75, 1.0), steps=30)
QUICK = Plan(("unpatched", "pi", "yarn", "dynamic_ntk", "rerope"), (1, 2, 4), 6, 64, 2, (0.0, 0.5, 1.0), steps=8)


@dataclass(frozen=True)
class Results:
    """Rows of all entries, and the settings they were measured with."""

    rows: list[Row]
    about: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Content of ``results.json``."""
        return {"about": self.about, "rows": [row.to_dict() for row in self.rows]}


def run_demo(
    out: Path, quick: bool = False, progress: ProgressCallback | None = None, text: TextSource | None = None
) -> Results:
    """Compare schemes on the starter Llama and write ``results.json``, ``report.md``, ``loss.png``, ``passkey.png``.

    Args:
        out: folder of the four files; created if missing.
        quick: fewer schemes, lengths and samples; about a minute.
        progress: called with the completed fraction and a description of the current step.
        text: that the loss is measured on; by default held-out modules of the standard library.
    """
    from hf_posenc.eval.quiet import suppress_output
    from hf_posenc.starters import load_starter

    plan = QUICK if quick else FULL
    if text is not None:
        plan = replace(plan, text=measured_text(text))
    report_progress = progress or (lambda done, doing: None)
    started = time.monotonic()
    report_progress(0.0, "loading")
    with suppress_output(True):
        model, tokenizer = load_starter("llama")
    trained = model.config.max_position_embeddings
    lengths = [trained * multiple for multiple in plan.multiples]
    out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    about = about_run(plan, trained, lengths)
    steps = Steps(report_progress, entries=len(plan.labels) + 1)
    for entry in ENTRIES:
        if entry.label in plan.labels:
            rows += measure_entry(model, tokenizer, entry, lengths, plan, steps)
            write_json(out / "results.json", Results(rows, about).to_dict())  # a crash keeps what was measured
    rows += measure_fine_tuned(model, tokenizer, lengths, plan, steps)
    results = Results(rows, about | {"seconds": round(time.monotonic() - started)})
    report_progress(1.0, "writing")
    write_json(out / "results.json", results.to_dict())
    write_report(out, results.rows, results.about)
    return results


class Steps:
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


def measure_entry(model: Any, tokenizer: Any, entry: Entry, lengths: list[int], plan: Plan, steps: Steps) -> list[Row]:
    """Measure one entry, zero-shot; the model is unpatched before and after."""
    from hf_posenc.eval.comparison.refit_per_length import RefittedLM
    from hf_posenc.eval.evaluation import evaluate
    from hf_posenc.eval.lm.models import PosEncLM
    from hf_posenc.eval.quiet import suppress_output

    steps.begin(entry.label)
    shared = {"tokenizer": tokenizer, "on_request": lambda: steps.advance(1 / plan.requests)}
    with suppress_output(True):
        if entry.scheme is None:
            lm = PosEncLM(model, **shared)
        else:
            lm = RefittedLM(model, fit=entry.scheme, fit_options=entry.options, lengths=lengths, **shared)
    rows = evaluate(lm, label=entry.label, **plan.measure(lengths)).rows
    steps.end()
    return rows


def measure_fine_tuned(model: Any, tokenizer: Any, lengths: list[int], plan: Plan, steps: Steps) -> list[Row]:
    """Measure YaRN with the factor of the longest length, after brief LoRA fine-tuning on the training modules."""
    from hf_posenc.eval.evaluation import evaluate
    from hf_posenc.patching.patch import patch_model
    from hf_posenc.training import Training, finetune

    steps.begin(f"{FINE_TUNED}: training")
    patch_model(model, "yarn", target_length=lengths[-1])
    trained = finetune(
        model, tokenizer, [module_text(name) for name in TRAINING], Training(length=lengths[-1], steps=plan.steps),
        progress=lambda share, _: steps.report((steps.entry + share / 2) / steps.entries, steps.doing),
    ).model  # fmt: skip
    steps.advance(0.5)
    steps.doing = FINE_TUNED
    rows = evaluate(
        trained,
        tokenizer,
        label=FINE_TUNED,
        on_request=lambda: steps.advance(0.5 / plan.requests),
        **plan.measure(lengths),
    ).rows
    steps.end()
    return rows


def about_run(plan: Plan, trained: int, lengths: list[int]) -> dict[str, Any]:
    """Collect the settings that the report names."""
    from importlib.metadata import version

    return {
        "model": "starter llama",
        "trained_length": trained,
        "lengths": lengths,
        "samples": plan.samples,
        "scored_tokens": plan.scored,
        "text": None if plan.text is None else plan.text.label,
        "keys": plan.keys,
        "depths": list(plan.depths),
        "options": {e.label: e.options for e in ENTRIES if e.options and e.label in plan.labels},
        "fine_tune_steps": plan.steps,
        "python": ".".join(map(str, sys.version_info[:3])),
        "versions": {name: version(name) for name in ("hf-posenc", "torch", "transformers", "lm_eval")},
    }
