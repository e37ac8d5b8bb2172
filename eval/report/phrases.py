"""What reports of a comparison say, in one place for screen, Markdown and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_posenc.eval.catalogue import JOINT
from hf_posenc.eval.results.comparison import SHARES, Comparison, by_place

NAMES = {
    "nll": "loss", "ppl": "perplexity", "acc": "found", "recall": "tokens read", "exact_match": "answers exact",
    "exact": "wholly right", "match": "written", "part": "parts written", "prefix_nll": "loss of all tokens so far",
    "prefix_ppl": "perplexity of all tokens so far",
}  # fmt: skip
UNITS = {"nll": "nats/token", "prefix_nll": "nats/token"}
TASKS = {
    "posenc_ppl": "Loss of the same last tokens",
    "posenc_token_nll": "Loss of tokens by their position",
    "posenc_sliding_ppl": "Loss in a sliding window",
    "posenc_docs": "Loss in whole documents",
    "posenc_mlm": "Loss of the same masked tokens",
    "posenc_mlm_recall": "Masked tokens read",
    "posenc_passkey": "Passkeys found",
    "posenc_passkey_gen": "Passkeys written",
    "posenc_niah_single": "Needle in a haystack",
    "posenc_niah_multikey": "Needle among other needles",
    "posenc_niah_multivalue": "Several needles of one key",
    "posenc_niah_multiquery": "Several needles asked for",
    "posenc_vt": "Variables traced",
    "posenc_cwe": "Common words",
    "posenc_fwe": "Frequent words",
    "posenc_qa": "Questions on one of many paragraphs",
    "posenc_copy": "Strings copied",
    "posenc_induction": "Induction: what followed last time",
}


def is_share(metric: str) -> bool:
    """Whether a metric lies between 0 and 1 and is told in percent."""
    return metric in SHARES


def in_units(metric: str, value: float) -> float:
    """A value as axes have it."""
    return 100 * value if is_share(metric) else value


def named(metric: str) -> str:
    """``loss`` for nll."""
    return NAMES.get(metric, metric)


def axis(metric: str) -> str:
    """``loss (nats/token)``."""
    unit = "%" if is_share(metric) else UNITS.get(metric)
    return f"{named(metric)} ({unit})" if unit else named(metric)


def headings(about: Mapping[str, Any], lengths: Sequence[int | None]) -> list[str]:
    """``512 (2×)``; a task without lengths has one nameless column."""
    return ["any length" if n is None else f"{n:,} ({n / about['trained_length']:g}×)" for n in lengths]


def title(about: Mapping[str, Any]) -> str:
    """One line for the whole comparison."""
    count, times = len(about["schemes"]), about["lengths"][-1] / about["trained_length"]
    ways = "one way" if count == 1 else f"{count} ways"
    return f"{about['model']}: {ways} to know position, up to {times:g}× the trained length"


def task_title(task: str) -> str:
    """What a task measures, in words where we have some."""
    return TASKS.get(task, task)


def grid(comparison: Comparison, task: str, metric: str) -> tuple[list[str], list[list[str]]]:
    """Column heads and lines of a table: entries down, lengths across. Entries without numbers say why in a word."""
    rows = by_place(comparison.rows, task, metric)
    lengths = sorted({length for _, length in rows}, key=lambda length: length or 0)
    states: dict[Any, str] = {(r.scheme, r.task, r.length): r.state for r in comparison.records}
    lines = []
    for label in comparison.labels:
        cells = []
        for length in lengths:
            row = rows.get((label, length))
            state = states.get((label, task, length)) or states.get((label, task, None), "")
            cells.append(state if row is None else number(metric, row.value, row.stderr))
        lines.append([label, *cells])
    return ["scheme", *headings(comparison.about, lengths)], lines


def number(metric: str, value: float, stderr: float | None) -> str:
    """``1.234 ± 0.012``; shares as ``75 ± 9 %``."""
    if is_share(metric):
        return f"{100 * value:.0f} %" if stderr is None else f"{100 * value:.0f} ± {100 * stderr:.0f} %"
    told = f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"
    return told if stderr is None else f"{told} ± {stderr:.3f}" if abs(value) < 100 else f"{told} ± {stderr:.3g}"


def remarks(comparison: Comparison) -> list[str]:
    """What a reader must know before the numbers: refusals, failures, schemes that would need training."""
    found = []
    for state in ("refused", "failed"):
        for (label, reason), records in comparison.reasons(state).items():
            where = sorted({f"{r.task} {r.length}" if r.length else r.task for r in records})
            everywhere = len(records) == sum(r.scheme == label for r in comparison.records)
            found.append(f"{label}: {state}{'' if everywhere else ' at ' + ', '.join(where)}. {reason}")
    found += [
        f"{scheme['label']} is made for models that are trained with it; these weights were not."
        for scheme in comparison.about["schemes"]
        if scheme["needs_training"]
    ]
    carried = comparison.about["model_scheme"]
    return found + ([f"The model came with scheme {carried}; that is what unpatched stands for."] if carried else [])


def method(about: Mapping[str, Any]) -> list[str]:
    """How it was measured, a sentence or two each."""
    depths = ", ".join(f"{100 * depth:g} %" for depth in about["depths"])
    patched = (
        f"Every scheme is patched once, for {about['lengths'][-1]:,} tokens, unless it names a factor itself."
        if about["one_factor"]
        else "Every scheme is patched anew for each length with factor = length / trained length, so that each is seen "
        "at its best, unless it names a factor itself."
    )
    text = about["text"] or f"held-out modules of the standard library of Python {about['versions']['python']}"
    sentences = [
        f"The model was trained on {about['trained_length']:,} tokens; all schemes have the same weights. {patched}",
        f"Losses: {about['samples']} windows of text, the last {about['scored']} tokens of each, the same tokens at "
        f"every length and for every scheme. Text: {text}.",
        f"Keys and needles: {about['keys']}, each at depths {depths} of the filler.",
        "± is one standard error over documents; bands are 95 % confidence (Student's t; Wilson where all documents "
        "agree). As all schemes meet the same documents, differences between schemes are surer than the bands suggest.",
        f"Seed {about['seed']}. Tasks: {', '.join(about['tasks'])}.",
    ]
    sentences += [
        f"{task} reads each text once for all lengths, under the scheme as it is patched for the longest."
        for task in about["tasks"]
        if task in JOINT
    ]
    if about["limit"] is not None:
        sentences.append(f"Limited to {about['limit']} documents a length: a quick look, not a result.")
    return sentences
