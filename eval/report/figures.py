"""Curves of a comparison as vector figures for papers: PDF with embedded fonts, and SVG."""

from __future__ import annotations

import io
import re
from typing import Any

from hf_posenc.core.plotting.svg import NEUTRAL
from hf_posenc.eval.report.page_plots import curves_figure
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.gate import shown_metrics

DATES = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""Metadata left out, so that equal numbers give equal files."""


def figure_files(comparison: Comparison) -> dict[str, bytes]:
    """The curves of the most important metric of every task, by file name; tasks without lengths have none."""
    files = {}
    for task in comparison.tasks():
        swept = {row.metric for row in comparison.rows if row.task == task and row.length and row.depth is None}
        for metric in [metric for metric in shown_metrics(comparison, task) if metric in swept][:1]:
            canvas, _ = curves_figure(comparison, task, metric)
            name = re.sub(r"\W+", "_", f"{task}_{metric}", flags=re.ASCII)[:80]
            for kind in DATES:
                files[f"figure_{name}.{kind}"] = rendered(canvas, kind)
    return files


def rendered(canvas: Any, kind: str) -> bytes:
    """A figure in a vector format, black where the page has its text colour."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "figure", "text.parse_math": False}):
        canvas.savefig(file, format=kind, metadata=DATES[kind])
    return file.getvalue().replace(NEUTRAL.encode(), b"#000000") if kind == "svg" else file.getvalue()
