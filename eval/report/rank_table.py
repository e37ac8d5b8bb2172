"""Ranks of a comparison as tables: ``hf-posenc compare --rank``."""

from __future__ import annotations

from hf_posenc.eval.report.effective import format_length
from hf_posenc.eval.report.phrases import axis_label, is_share, to_units
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.effective_length import EffectiveLength
from hf_posenc.eval.results.paired import Difference
from hf_posenc.eval.results.ranking import Ranked, rankings

NONE = "—"
RULES = (
    "Rank: the possible places at the longest length. Every pair of lines is compared on the same documents; 1–4 means "
    "that no line is surely better, and that all but four are surely worse (5 %, Holm's correction over the table).",
    "Behind first: mean difference from the first line over the same documents, with its own 95 % interval.",
    "Effective length: as in its table.",
    "Time: of the cell, over that of the unpatched line. It is one run, and rough: hf-posenc bench times in pairs.",
    "◆: on the Pareto front, as no other line is both faster and better.",
)
"""How to read the columns."""


def rank_tables(comparison: Comparison) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Column heads and rows by task; empty for a comparison without ``rank``."""
    return {task: (heads(lines[0]), [cells(line) for line in lines]) for task, lines in rankings(comparison).items()}


def heads(line: Ranked) -> list[str]:
    """Column heads; the score is named with its unit and length."""
    score = f"{axis_label(line.metric)} at {line.length:,}"
    return ["scheme", "rank", "behind first", score, "effective length", "time", "cache/token"]


def cells(line: Ranked) -> list[str]:
    """The cells of a line, under `heads`."""
    return [
        f"{line.scheme} ◆" if line.on_front else line.scheme,
        rank(line), behind(line.metric, line.behind), score(line), effective(line.effective),
        NONE if line.time is None else f"{line.time:.2f}×",
        NONE if line.cache_per_token is None else f"{line.cache_per_token:,.0f} B",
    ]  # fmt: skip


def rank(line: Ranked) -> str:
    """Format as ``1–4``."""
    if line.first is None:
        return NONE
    return str(line.first) if line.first == line.last else f"{line.first}–{line.last}"


def behind(metric: str, found: Difference | None) -> str:
    """Format as ``+0.13 (+0.02 … +0.24)``, shares in percentage points."""
    if found is None:
        return NONE
    digits = "+.0f" if is_share(metric) else "+.3f"

    def shown(value: float) -> str:
        return f"{to_units(metric, value):{digits}}".replace("-", "−")

    if found.low is None or found.high is None:
        return shown(found.difference)
    return f"{shown(found.difference)} ({shown(found.low)} … {shown(found.high)})"


def score(line: Ranked) -> str:
    """Format as ``3.012 (2.801–3.223)``, shares in percent."""
    if line.value is None:
        return NONE
    digits = ".0f" if is_share(line.metric) else ".3f"
    value, *bounds = (
        None if bound is None else f"{to_units(line.metric, bound):{digits}}"
        for bound in (line.value, line.low, line.high)
    )  # fmt: skip
    return f"{value} ({bounds[0]}–{bounds[1]})" if None not in bounds else f"{value}"


def effective(found: EffectiveLength | None) -> str:
    """Format as in the table of effective lengths."""
    return NONE if found is None else format_length(found)
