"""Markdown reports: ``report.md`` of the demo with its two plots, and ``results.md`` of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.staged import staged
from hf_posenc.eval.report.effective import TITLE as EFFECTIVE
from hf_posenc.eval.report.effective import effective_rule, effective_table
from hf_posenc.eval.report.marks import difference_caption, difference_table, legend
from hf_posenc.eval.report.phrases import (
    axis_label,
    table_of,
    task_title,
    title,
)
from hf_posenc.eval.report.plots import loss_plot, overview_plot, passkey_plot
from hf_posenc.eval.report.remarks import method, remarks
from hf_posenc.eval.report.settings import chosen_options
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.gate import shown_metrics
from hf_posenc.eval.results.rows import Row

Cell = Callable[[str, int], str]


def write_report(folder: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """Write ``loss.png``, ``passkey.png``, ``overview.png`` and ``report.md`` into ``folder``, all of them or none."""
    trained = about["trained_length"]
    with staged(folder) as staging:
        loss_plot(rows, trained, staging / "loss.png", protocol(about))
        passkey_plot(rows, trained, staging / "passkey.png", protocol(about))
        overview_plot(rows, trained, staging / "overview.png", protocol(about))
        write_bytes(staging / "report.md", report_text(rows, about).encode())


def report_text(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """Format the demo's report as Markdown."""
    lengths, trained = about["lengths"], about["trained_length"]
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    value = lookup(rows)

    def loss(scheme: str, length: int) -> str:
        row = value[scheme, length, "posenc_ppl", "nll"]
        return f"{row.value:.3f}" + (f" ± {row.stderr:.3f}" if row.stderr is not None else "")

    def perplexity(scheme: str, length: int) -> str:
        return f"{value[scheme, length, 'posenc_ppl', 'ppl'].value:.1f}"

    def accuracy(scheme: str, length: int) -> str:
        return f"{100 * value[scheme, length, 'posenc_passkey', 'acc'].value:.0f} %"

    parts = [
        f"# {about['model']}: {len(schemes)} positional schemes, up to {lengths[-1] // trained}× the trained length",
        introduction(about),
        f"![Loss and passkey retrieval against length, {protocol(about)}](overview.png)",
        f"## Cross-entropy loss (nats/token, ± standard error over windows), {protocol(about)}\n\n"
        + table(schemes, lengths, trained, loss),
        "![Loss against length](loss.png)",
        f"## Perplexity, {protocol(about)}\n\n" + table(schemes, lengths, trained, perplexity),
        f"## Passkey retrieval, {protocol(about)}\n\n" + table(schemes, lengths, trained, accuracy),
        "![Passkey retrieval accuracy by scheme and length](passkey.png)",
        "## How it was measured\n\n" + demo_method(about),
    ]
    return "\n\n".join(parts) + "\n"


def introduction(about: Mapping[str, Any]) -> str:
    """Explain what the tables show."""
    return (
        f"The model was trained on {about['trained_length']} tokens. Each scheme is patched into the same weights,\n"
        "without training, and measured at longer contexts. A loss that stays flat to the right means that the scheme\n"
        "extrapolates; a loss that falls, that the model uses the longer context."
    )


def demo_method(about: Mapping[str, Any]) -> str:
    """Describe how the numbers were measured."""
    depths = ", ".join(f"{100 * depth:g} %" for depth in about["depths"])
    options = "; ".join(f"{label}: {chosen_options(given)}" for label, given in about["options"].items())
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    named = about.get("text") or f"the standard library of Python {about['python']}; other versions differ slightly"
    text = named if isinstance(named, str) else ", ".join(named)
    return f"""\
- Cross-entropy loss (`posenc_ppl`): mean over the last {about["scored_tokens"]} tokens of {about["samples"]} windows of
  held-out text, the same tokens at every length and for every scheme. The standard errors are those over windows, or
  over texts where there are several; all schemes are measured on the same text, so differences between schemes are more
  certain than they suggest.
- Passkey retrieval (`posenc_passkey`): {about["keys"]} five-digit keys, each inserted at depths {depths} of the filler
  text. A key counts as found if greedy decoding generates all five digits.
{factors(about)}
  Options other than the defaults: {options or "none"}.
- Text: {text}.
- Versions: {versions}."""


def factors(about: Mapping[str, Any]) -> str:
    """Say which factor the schemes of the demo have."""
    if about["factor_per_length"]:
        return """\
- Refitted per length: every scheme is patched anew for each length, with factor = length / trained length. At the
  trained length the factor is 1, and a scaling is the unscaled model. A model that is deployed has one factor."""
    times, steps = about["lengths"][-1] // about["trained_length"], about["fine_tune_steps"]
    return f"""\
- Every scheme is patched once, with factor {times}, and measured at all lengths with it, as a deployed model would be.
  `yarn + LoRA` has {steps} steps of LoRA on text that is not in the test; the others are zero-shot."""


def protocol(about: Mapping[str, Any]) -> str:
    """Name the factor of the schemes of the demo, for titles: ``factor 8 at every length``."""
    if about["factor_per_length"]:
        return "refitted per length: factor = length / trained length"
    return f"factor {about['lengths'][-1] // about['trained_length']} at every length"


def table(schemes: Sequence[str], lengths: Sequence[int], trained: int, cell: Cell) -> str:
    """Format a Markdown table: schemes as rows, lengths as columns."""
    head = ["scheme", *(heading(length, trained) for length in lengths)]
    return markdown_table(head, [[scheme, *(cell(scheme, length) for length in lengths)] for scheme in schemes])


def heading(length: int, trained: int) -> str:
    """Format a length and its multiple of the trained length: ``512 (2×)``."""
    return f"{length} ({length / trained:g}×)"


def lookup(rows: Sequence[Row]) -> dict[tuple[str, int, str, str], Row]:
    """Index the rows over all depths by scheme, length, task and metric."""
    return {
        (row.scheme, row.length, row.task, row.metric): row
        for row in rows
        if row.depth is None and row.length is not None
    }


def comparison_text(comparison: Comparison) -> str:
    """Format a comparison as Markdown: a table for every metric of every task, and how it was measured."""
    about = comparison.about
    parts = [f"# {escaped(title(about))}"]
    if noted := remarks(comparison):
        parts.append(bullets(noted))
    if marks := legend(comparison):
        parts.append(escaped(marks))
    for task in comparison.tasks():
        metrics = shown_metrics(comparison, task)
        parts += [f"## {escaped(task_title(task))}"] if metrics else []
        for metric in metrics:
            head, lines = table_of(comparison, task, metric)
            parts.append(f"{escaped(axis_label(metric))}, `{task}`\n\n" + markdown_table(head, lines))
            if differences := difference_table(comparison, task, metric):
                parts.append(f"{escaped(difference_caption(comparison, metric))}\n\n" + markdown_table(*differences))
    if (effective := effective_table(comparison)) is not None:
        parts += [f"## {EFFECTIVE}", markdown_table(*effective), escaped(effective_rule(comparison))]
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    parts += ["## How it was measured", bullets([*method(about), f"Versions: {versions}."])]
    if about["command"]:
        parts.append("```console\n$ " + about["command"].replace("\n", " ") + "\n```")
    return "\n\n".join(parts) + "\n"


def bullets(sentences: Sequence[str]) -> str:
    """Format a bulleted list."""
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a table with right-aligned numbers."""
    rows = ["| " + " | ".join(map(escaped, line)) + " |" for line in (head, *lines)]
    return "\n".join([rows[0], "|---|" + "---:|" * (len(head) - 1), *rows[1:]])


def escaped(text: str) -> str:
    """Escape foreign text, so that it is neither markup nor the end of a cell."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").split())
