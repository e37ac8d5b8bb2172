"""Tables of a comparison for terminal, Markdown and HTML page: column heads and rows of text.

metric            lines × lengths, with marks of significant differences, and a table of the differences
effective length  lines × tasks
ranks             one table for each task, if ``rank`` is set
costs             only on the terminal, because they differ from run to run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hf_posenc.eval.report.phrases import UNITS, axis_label, format_value, is_share, metric_name, to_units
from hf_posenc.eval.results.comparison import Comparison, rows_by_cell
from hf_posenc.eval.results.effective_length import RULER, EffectiveLength, effective_lengths
from hf_posenc.eval.results.paired import Difference
from hf_posenc.eval.results.ranking import Ranked, rankings
from hf_posenc.eval.results.rows import FEWEST
from hf_posenc.eval.results.store import costs_of

EFFECTIVE = "Effective context length"
COSTS = "Costs: time of all cells, peak memory, KV cache"
NONE = "—"
RULES = (
    "Rank: the possible places at the longest length. Every pair of lines is compared on the same documents; 1–4 means "
    "that no line is significantly better, and all but four are significantly worse (5 %, Holm's correction).",
    "Behind first: mean difference from the first line over the same documents, with its own 95 % interval.",
    "Effective length: as in its table.",
    "Time: of the cell, over that of the unpatched line. It is one run, and rough: hf-posenc bench times in pairs.",
)
"""How to read the columns of a table of ranks."""


class Table(NamedTuple):
    """Column heads and rows with labels in the first column, a caption, and a note on how to read the table."""

    head: list[str]
    lines: list[list[str]]
    caption: str = ""
    note: str = ""


def metric_tables(comparison: Comparison, task: str, metric: str) -> list[Table]:
    """Table of one metric, lines × lengths, and a table of differences from the reference if there is one."""
    tables = [value_table(comparison, task, metric)]
    if (differences := difference_table(comparison, task, metric)) is not None:
        tables.append(differences)
    return tables


def value_table(comparison: Comparison, task: str, metric: str) -> Table:
    """Table of the values of one metric, lines × lengths.

    A cell without a value shows its state, such as ``refused``; a cell that is compared with a reference has a mark.
    """
    rows = rows_by_cell(comparison.rows, task, metric)
    lengths = sorted({length for _, length in rows}, key=lambda length: length or 0)
    states: dict[Any, str] = {(r.scheme, r.task, r.length): r.state for r in comparison.records}
    lines = []
    for label in comparison.labels:
        cells = []
        for length in lengths:
            row = rows.get((label, length))
            state = states.get((label, task, length)) or states.get((label, task, None), "")
            mark = comparison.mark(label, task, metric, length)
            cells.append(state if row is None else f"{format_value(metric, row.value, row.stderr)} {mark}".rstrip())
        lines.append([label, *cells])
    return Table(["scheme", *headings(comparison.about, lengths)], lines, axis_label(metric))


def headings(about: Mapping[str, Any], lengths: Sequence[int | None]) -> list[str]:
    """Format column heads as ``512 (2×)``; a task without lengths has one column, ``any length``."""
    return ["any length" if n is None else f"{n:,} ({n / about['trained_length']:g}×)" for n in lengths]


def legend(comparison: Comparison) -> str:
    """Sentence on what the marks mean; empty without a reference."""
    reference = comparison.about.get("against")
    if reference is None:
        return ""
    marks = (
        f"Marks: + significantly better than {reference}, − significantly worse, ? undecided; paired over the same "
        "documents, p below 0.05 after Holm's correction over the table."
    )
    if any(difference.clusters < FEWEST for difference in comparison.differences):
        marks += f" Fewer than {FEWEST} documents or keys have no interval, and are always undecided."
    return marks


def difference_table(comparison: Comparison, task: str, metric: str) -> Table | None:
    """Table of the differences of one metric from the reference; None if there are no differences."""
    differences = {(d.scheme, d.length): d for d in comparison.differences if (d.task, d.metric) == (task, metric)}
    if not differences:
        return None
    reference = comparison.about["against"]
    lengths = sorted({length for _, length in differences}, key=lambda length: length or 0)
    cells = {key: f"{signed(difference, '+.1f')} {difference.mark}" for key, difference in differences.items()}
    lines = [
        [label, *(cells.get((label, length), "") for length in lengths)]
        for label in comparison.labels
        if label != reference
    ]
    unit = "percentage points" if is_share(metric) else UNITS.get(metric)
    caption = (
        f"{metric_name(metric)} minus that of {reference}{f' ({unit})' if unit else ''}: mean over documents, 95 % "
        "interval, mark"
    )
    return Table(["scheme", *headings(comparison.about, lengths)], lines, caption)


def signed(difference: Difference, share_digits: str) -> str:
    """Format as ``+0.376 (+0.312 … +0.440)``, shares in percentage points; without an interval if there is none."""
    digits = share_digits if is_share(difference.metric) else "+.3f"

    def in_units(value: float) -> str:
        return f"{to_units(difference.metric, value):{digits}}".replace("-", "−")

    if difference.low is None or difference.high is None:
        return in_units(difference.difference)
    return f"{in_units(difference.difference)} ({in_units(difference.low)} … {in_units(difference.high)})"


def summaries(comparison: Comparison) -> list[Table]:
    """The tables that summarise whole tasks: ranks, if asked for, and effective context lengths."""
    tables = rank_tables(comparison)
    if (effective := effective_table(comparison)) is not None:
        tables.append(effective)
    return tables


def effective_table(comparison: Comparison) -> Table | None:
    """Table of effective context lengths, lines × tasks; None if no task was measured at several lengths."""
    effective = effective_lengths(comparison)
    if not effective:
        return None
    tasks = list(dict.fromkeys(one.task for one in effective))
    cells = {(one.scheme, one.task): format_length(one) for one in effective}
    lines = [[label, *(cells.get((label, task), "") for task in tasks)] for label in comparison.labels]
    return Table(["scheme", *tasks], lines, EFFECTIVE, effective_rule([one.metric for one in effective]))


def format_length(effective: EffectiveLength) -> str:
    """Format as ``512 (256 … 1,024)``; a length of 0 as ``none``."""
    length, low, high = (f"{n:,}" if n else "none" for n in (effective.length, effective.low, effective.high))
    return length if low == high == length else f"{length} ({low} … {high})"


def effective_rule(metrics: Sequence[str]) -> str:
    """Sentence on the rule of effective lengths, for the metrics that decide."""
    rules = []
    if shares := sorted({metric_name(metric) for metric in metrics if is_share(metric)}):
        rules.append(f"{' or '.join(shares)} is at least {100 * RULER:g} % (RULER's rule, arXiv:2404.06654)")
    if not all(map(is_share, metrics)):
        rules.append("perplexity is at most 5 % above that of the unpatched model at its trained length")
    return (
        f"The longest measured length at which {'; '.join(rules)}. In brackets: the longest at which the whole 95 % "
        "interval of the score passes, and at which a part of it does."
    )


def rank_tables(comparison: Comparison) -> list[Table]:
    """One table of ranks for each task; empty for a comparison without ``rank``."""
    tables = []
    for task, lines in rankings(comparison).items():
        score = f"{axis_label(lines[0].metric)} at {lines[0].length:,}"
        head = ["scheme", "rank", "behind first", score, "effective length", "time", "cache/token"]
        tables.append(Table(head, [rank_line(line) for line in lines], f"Ranks: {task}", " ".join(RULES)))
    return tables


def rank_line(line: Ranked) -> list[str]:
    """The cells of a ranked line."""
    places = NONE if line.first is None else f"{line.first}–{line.last}"
    return [
        line.scheme,
        str(line.first) if line.first is not None and line.first == line.last else places,
        NONE if line.behind is None else signed(line.behind, "+.0f"), format_score(line),
        NONE if line.effective is None else format_length(line.effective),
        NONE if line.time is None else f"{line.time:.2f}×",
        NONE if line.cache_per_token is None else f"{line.cache_per_token:,.0f} B",
    ]  # fmt: skip


def format_score(line: Ranked) -> str:
    """Format as ``3.012 (2.801–3.223)``, shares in percent."""
    digits = ".0f" if is_share(line.metric) else ".3f"
    value, low, high = (
        NONE if bound is None else f"{to_units(line.metric, bound):{digits}}"
        for bound in (line.value, line.low, line.high)
    )
    return value if NONE in (low, high) else f"{value} ({low}–{high})"


def cost_table(comparison: Comparison) -> Table:
    """Table of the costs of every line: total time and largest memory of its finished cells."""
    lines = []
    for label in comparison.labels:
        if not (records := comparison.done(label)):
            continue
        costs = costs_of(records)
        peak, cache = costs.peak_memory, costs.cache_per_token
        lines.append([
            label, f"{sum(record.seconds for record in records):.1f} s",
            "" if peak is None else f"{peak / 2**20:,.0f} MiB ({costs.memory_of})",
            "" if cache is None else f"{cache:,.0f} bytes",
        ])  # fmt: skip
    return Table(["scheme", "time", "peak memory", "cache per token"], lines, COSTS)
