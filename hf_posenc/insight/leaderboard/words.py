"""Numbers and sentences of a leaderboard, shared by its page, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_posenc.eval.report.phrases import axis_label, model_title, task_title, to_units
from hf_posenc.eval.results.effective_length import RULER
from hf_posenc.insight.leaderboard.line import Effective, LengthScore, Line, PairedCost

NONE = "—"
RULES = (
    "Rank: the places that are possible at the longest length, where every pair of lines is compared on the same "
    "documents. 1–4 says: no line is surely better, and all but four are surely worse, at the 5 % level after Holm's "
    "correction over all pairs of the table (a confidence set of ranks: Mogstad, Romano, Shaikh and Wilhelm 2024).",
    "Behind first: mean difference from the first line at the longest length over the same documents, with 95 % "
    "interval by Student's t, of each comparison alone.",
    f"Effective length: the longest measured length with an accuracy of at least {100 * RULER:g} % (RULER's rule, "
    "arXiv:2404.06654), or with a loss of at most 5 % of perplexity above that of the unpatched model at its trained "
    "length. In brackets its 95 % interval by the bootstrap over documents, the same documents at all lengths.",
    "Scores: mean over documents, with 95 % interval by Student's t; by Wilson where all answers are right, or none.",
    "Prefill, decode: time over that of the unpatched model at the longest length, median (quartiles) of paired runs. "
    "Memory: peak above the weights in a forward pass, over that of the unpatched model, which is timed past its "
    "trained length too.",
    "†: meant for training, and these weights were not trained with it.",
)
"""How to read the columns."""


def heading(model: Mapping[str, Any], task: str) -> str:
    """Title of a table: ``starter:llama: Passkey retrieval``."""
    return f"{model_title(model['name'])}: {task_title(task)}"


def columns(model: Mapping[str, Any], lines: Sequence[Line]) -> list[str]:
    """Column heads of a table."""
    trained = model["trained_length"]
    lengths = [f"{score.length:,} ({score.length / trained:g}×)" for score in lines[0].scores]
    cases = [case for case in ("prefill", "decode") if any(line.cost(case) for line in lines)]
    return ["scheme", "rank", "behind first", "kind", "effective length", *lengths, *cases, "memory", "cache/token"]


def cells(line: Line, lines: Sequence[Line]) -> list[str]:
    """The cells of a line, under `columns`."""
    cases = [case for case in ("prefill", "decode") if any(other.cost(case) for other in lines)]
    prefill = line.cost("prefill")
    return [
        named(line), rank(line), behind(line), line.kind, effective(line.effective),
        *(score(line, one) for one in line.scores), *(times(line, case) for case in cases),
        "1" if line.use == "unpatched" else NONE if prefill is None or prefill.memory is None
        else f"{prefill.memory:.2f}",
        NONE if line.cache_per_token is None else f"{line.cache_per_token:,.0f} B",
    ]  # fmt: skip


def named(line: Line) -> str:
    """The scheme, marked where it is meant for training."""
    return f"{line.scheme} †" if line.use == "training" else line.scheme


def rank(line: Line) -> str:
    """Format as ``1–4``."""
    if line.rank is None:
        return NONE
    return str(line.rank.first) if line.rank.first == line.rank.last else f"{line.rank.first}–{line.rank.last}"


def behind(line: Line) -> str:
    """Format as ``+0.13 (+0.02 … +0.24)``, shares in percentage points."""
    found = line.behind
    if found is None:
        return NONE
    digits = "+.0f" if line.is_share else "+.3f"
    value, low, high = (
        None if bound is None else f"{to_units(line.metric, bound):{digits}}".replace("-", "−")
        for bound in (found.value, found.low, found.high)
    )
    return f"{value}" if low is None or high is None else f"{value} ({low} … {high})"


def effective(found: Effective | None) -> str:
    """Format as ``512 (256–1,024)``; lengths of 0 as ``none``."""
    if found is None:
        return NONE
    if found.low is None or found.high is None:
        return tokens(found.length)
    return f"{tokens(found.length)} ({tokens(found.low)}–{tokens(found.high)})"


def tokens(length: int) -> str:
    """A length, or ``none`` for 0."""
    return f"{length:,}" if length else "none"


def score(line: Line, found: LengthScore) -> str:
    """Format as ``3.012 (2.801–3.223)``, shares in percent; else its state."""
    if found.value is None:
        return found.state
    digits, unit = (".0f", " %") if line.is_share else (".3f", "")
    value = f"{to_units(line.metric, found.value):{digits}}"
    if found.low is None or found.high is None:
        return value + unit
    low, high = (f"{to_units(line.metric, bound):{digits}}" for bound in (found.low, found.high))
    return f"{value}{unit} ({low}–{high})"


def times(line: Line, case: str) -> str:
    """Format the time of a case as ``1.21×``; 1 for the unpatched model itself."""
    cost = line.cost(case)
    if line.use == "unpatched":
        return "1"
    return NONE if cost is None else ratio(cost)


def ratio(cost: PairedCost) -> str:
    """Format as ``1.21 (1.18–1.25)``: median and quartiles."""
    return f"{cost.time:.2f} ({cost.time_low:.2f}–{cost.time_high:.2f})"


def caption(lines: Sequence[Line]) -> str:
    """What the scores of a table are."""
    return axis_label(lines[0].metric) if lines[0].metric else "no number"


def factor_sentence(about: Mapping[str, Any]) -> str:
    """How schemes are patched, in one sentence."""
    if about["settings"]["factor_per_length"]:
        return "Every scheme is patched for each length separately, with factor = length / trained length."
    return (
        "Every scheme is patched once, with factor = longest length / trained length, and measured at all lengths with "
        "it, as it would be deployed; schemes that need less at short lengths are better with --factor-per-length."
    )


def machine_sentence(about: Mapping[str, Any]) -> str:
    """The machine and the date in one sentence."""
    machine = about["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return (
        f"Made on {about['date']} on {machine['processor']}, {machine['cores']} cores, {machine['threads']} thread(s) "
        f"while timing, {machine['system']}; {versions}."
    )
