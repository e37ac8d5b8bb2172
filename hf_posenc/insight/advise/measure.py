"""Rank recommendations by what they reach on one model and text, instead of by what was published."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_posenc.errors import BadComparison
from hf_posenc.eval.texts.measured_text import TextToMeasure
from hf_posenc.insight.advise.recommendation import Recommendation
from hf_posenc.insight.advise.report import Advice
from hf_posenc.schemes.entry import UNPATCHED

TASK = {True: "posenc_ppl", False: "posenc_mlm"}
"""The loss of a decoder, and of an encoder."""


def measured_advice(
    advice: Advice,
    model: Any,
    *,
    text: TextToMeasure = None,
    samples: int = 16,
    out: Path | None = None,
    progress: Callable[[float, str], None] | None = None,
    **loading: Any,
) -> Advice:
    """Measure the zero-shot recommendations at the target length, and order them by their loss.

    Each is patched as its line says, with the factor of the target length, and measured on the last tokens of the same
    windows. Schemes that evict keys stay behind those that keep all: the loss of the last tokens does not show what is
    lost with the others.

    Args:
        advice: of `hf_posenc.advise`.
        model: the live model, unpatched, or its name.
        text: as in `hf_posenc.eval.evaluate`; by default held-out modules of the standard library.
        samples: windows of text.
        out: folder of the comparison, which resumes there; by default none is kept.
        progress: called with the completed fraction and a description of the current step.
        **loading: further arguments of `hf_posenc.eval.compare`, such as ``tokenizer`` and ``dtype``.

    Returns:
        The advice with `Recommendation.measured` and `Advice.unpatched_loss`.

    Raises:
        BadComparison: there is nothing to rank, or nothing could be measured, as on a text that is too short.
        PosEncError: an argument is invalid.
    """
    from hf_posenc.eval import compare

    if not advice.zero_shot or advice.trained_length is None:
        raise BadComparison(
            f"There is no zero-shot recommendation for {advice.model} at {advice.target_length:,} tokens to measure. "
            "Leave --measure out."
        )
    entries = {one.scheme: (one.scheme, {**one.lengths, **one.options}) for one in advice.zero_shot}
    task = TASK[advice.memory.cache > 0]
    with tempfile.TemporaryDirectory() as temporary:
        comparison = compare(
            model, [UNPATCHED, *entries.values()], out=out or temporary, tasks=[task], text=text, samples=samples,
            lengths=sorted({advice.trained_length, advice.target_length}), progress=progress, **loading,
        )  # fmt: skip
    losses = {
        (scheme["scheme"], row.length): (row.value, row.stderr)
        for scheme in comparison.about["schemes"]
        for row in comparison.rows
        if row.scheme == scheme["label"] and row.metric == "nll"
    }
    if not any((one.scheme, advice.target_length) in losses for one in advice.zero_shot):
        why = next((record.reason for record in comparison.records if record.reason), "No loss was computed.")
        raise BadComparison(f"None of the recommendations for {advice.model} could be measured. {why}")
    found = [replace(one, measured=losses.get((one.scheme, advice.target_length))) for one in advice.zero_shot]
    return replace(
        advice,
        zero_shot=tuple(sorted(found, key=lambda one: _rank(one, advice.target_length))),
        unpatched_loss=losses.get((None, advice.trained_length)),
    )


def _rank(one: Recommendation, target: int) -> tuple[bool, bool, float]:
    """Schemes that keep all keys come first, then those that could be measured, by their loss."""
    return one.kept < target, one.measured is None, one.measured[0] if one.measured else 0.0
