"""Demo on real text: a small trained Llama, eight positional schemes, four context lengths, one fine-tuning.

    load the starter → patch → measure through lm-eval → unpatch → the next scheme → LoRA on YaRN → report

Every scheme is patched once, with the factor of the longest length, and measured at all lengths with it, as a deployed
model would be. With ``factor_per_length`` each length has a factor of its own instead: length / trained length.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hf_posenc.core.progress import ProgressCallback
from hf_posenc.eval.demo_plan import (
    FINE_TUNED,
    FULL,
    QUICK,
    DemoPlan,
    DemoSteps,
    about_run,
    options_for,
)
from hf_posenc.eval.report.report import write_report
from hf_posenc.eval.results.rows import Row, write_json
from hf_posenc.eval.texts.measured_text import measured_text
from hf_posenc.eval.texts.stdlib_source import TRAINING, module_text
from hf_posenc.schemes.entry import Entry
from hf_posenc.texts import TextSource


@dataclass(frozen=True)
class DemoResults:
    """Rows of all entries, and the settings they were measured with."""

    rows: list[Row]
    about: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Content of ``results.json``."""
        return {"about": self.about, "rows": [row.to_dict() for row in self.rows]}


def run_demo(
    out: Path,
    quick: bool = False,
    progress: ProgressCallback | None = None,
    text: TextSource | None = None,
    factor_per_length: bool = False,
) -> DemoResults:
    """Compare schemes on the starter Llama; write ``results.json``, ``report.md`` and three plots.

    Args:
        out: folder of the files; created if missing.
        quick: fewer schemes, lengths and samples; about a minute.
        progress: called with the completed fraction and a description of the current step.
        text: that the loss is measured on; by default held-out modules of the standard library.
        factor_per_length: patch anew for every length, with factor = length / trained length, instead of once for the
            longest; without the fine-tuned model, which has one factor.
    """
    from hf_posenc.eval.quiet import suppress_output
    from hf_posenc.starters import load_starter

    plan = replace(QUICK if quick else FULL, factor_per_length=factor_per_length)
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
    steps = DemoSteps(report_progress, entries=len(plan.entries) + (not factor_per_length))
    for entry in plan.entries:
        rows += measure_entry(model, tokenizer, entry, lengths, plan, steps)
        write_json(out / "results.json", DemoResults(rows, about).to_dict())  # a crash keeps what was measured
    if not factor_per_length:
        rows += measure_fine_tuned(model, tokenizer, lengths, plan, steps)
    results = DemoResults(rows, about | {"seconds": round(time.monotonic() - started)})
    report_progress(1.0, "writing")
    write_json(out / "results.json", results.to_dict())
    write_report(out, results.rows, results.about)
    return results


def measure_entry(
    model: Any, tokenizer: Any, entry: Entry, lengths: list[int], plan: DemoPlan, steps: DemoSteps
) -> list[Row]:
    """Measure one entry, zero-shot; the model is unpatched before and after."""
    from hf_posenc.eval.comparison.refit_per_length import RefittedLM
    from hf_posenc.eval.evaluation import evaluate
    from hf_posenc.eval.lm.models import PosEncLM
    from hf_posenc.eval.quiet import suppress_output
    from hf_posenc.patching.patch import patch_model, unpatch_model

    steps.begin(entry.label)
    shared = {"tokenizer": tokenizer, "on_request": lambda: steps.advance(1 / plan.requests)}
    options_at = partial(options_for, entry, trained=model.config.max_position_embeddings)
    fixed = None if plan.factor_per_length else entry.scheme
    if fixed is not None:
        patch_model(model, fixed, target_length=lengths[-1], **options_at(lengths[-1]))
    try:
        with suppress_output(True):
            if entry.scheme is None or fixed is not None:
                lm = PosEncLM(model, **shared)
            else:
                lm = RefittedLM(model, fit=entry.scheme, options_at=options_at, lengths=lengths, **shared)
        rows = evaluate(lm, label=entry.label, **plan.measure(lengths)).rows
    finally:
        if fixed is not None:
            unpatch_model(model)
    steps.end()
    return rows


def measure_fine_tuned(model: Any, tokenizer: Any, lengths: list[int], plan: DemoPlan, steps: DemoSteps) -> list[Row]:
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
