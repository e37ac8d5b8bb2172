"""Comparison as one self-contained HTML page: inline SVG plots, no scripts, no external resources.

The template escapes everything put into it, except the plots, whose texts matplotlib and `hf_posenc.core.plotting`
escape.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_posenc.core.plotting import MAGNITUDES, length_names
from hf_posenc.eval.report.page_plots import curves
from hf_posenc.eval.report.phrases import UNITS, is_share, metric_name, task_title, title, to_units
from hf_posenc.eval.report.remarks import method, remarks
from hf_posenc.eval.report.tables import Table, legend, metric_tables, summaries
from hf_posenc.eval.report.verdict import verdict
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.effective_length import shown_metrics

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup


TEMPLATE = Path(__file__).parent / "page.html"
PANELS = (
    "One panel per scheme, all on the same axes; grey is the same model unpatched, dashed the trained length. "
    "Bands: 95 % confidence intervals."
)


def page_html(comparison: Comparison) -> str:
    """Render the page as HTML."""
    about = comparison.about
    return html_template(TEMPLATE).render(
        title=title(about),
        verdict=verdict(comparison),
        remarks=remarks(comparison),
        sections=[section(comparison, task) for task in comparison.tasks()],
        summaries=summaries(comparison),
        method=method(about),
        command=about["command"],
        versions=about["versions"],
        digests=about["digests"],
    )


def section(comparison: Comparison, task: str) -> dict[str, Any]:
    """Collect the plots and tables of one task."""
    metrics, shown = comparison.metrics(task), shown_metrics(comparison, task)
    swept = [m for m in shown if any(r.length is not None for r in comparison.rows if (r.task, r.metric) == (task, m))]
    drawn = [metric for metric in swept if metric != "ppl"][:2]  # perplexity is exp(loss), drawn already
    deep = shown_metrics(comparison, task, depth=True)
    mapped = [*[m for m in deep if is_share(m)][:1], *[m for m in deep if m == "nll"]]
    return {
        "name": task,
        "title": task_title(task),
        "curves": [
            {
                "caption": caption(metric, metrics),
                "picture": svg_markup(curves(comparison, task, metric)),
                "note": PANELS,
            }
            for metric in drawn
        ],
        "maps": [maps_of_metric(comparison, task, metric) for metric in mapped],
        "tables": [table for metric in shown for table in tables(comparison, task, metric)],
        "folded": [table for metric in metrics if metric not in shown for table in tables(comparison, task, metric)],
    }


def maps_of_metric(comparison: Comparison, task: str, metric: str) -> dict[str, Any]:
    """A metric with lengths as columns and depths as lines: a table for each entry, whose cells are coloured.

    The palette is cividis, perceptually uniform and the same to colour-blind readers (Nuñez et al. 2018,
    arXiv:1712.01662). Bright is better in every table: shares run from 0 to 100 %, losses from the highest of all
    entries, dark, to the lowest.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    rows = [r for r in comparison.rows if (r.task, r.metric) == (task, metric) and r.depth is not None]
    values = {(row.scheme, row.length, row.depth): to_units(metric, row.value) for row in rows}
    worst, best = (0.0, 100.0) if is_share(metric) else (max(values.values()), min(values.values()))
    digits, unit = (".0f", "%") if is_share(metric) else (".2f", UNITS.get(metric, ""))
    lengths = sorted({row.length for row in rows if row.length is not None})
    depths = sorted({row.depth for row in rows if row.depth is not None})

    def cell(value: float | None) -> dict[str, str]:
        if value is None:
            return {"text": "–", "colour": "transparent", "ink": "inherit"}
        bright = (value - worst) / (best - worst) if best != worst else 1.0
        colour = to_hex(colormaps[MAGNITUDES](bright))
        return {"text": f"{value:{digits}}", "colour": colour, "ink": "#fff" if bright < 0.55 else "#000"}

    def lines(label: str) -> list[dict[str, Any]]:
        return [
            {"depth": f"{100 * depth:g} %", "cells": [cell(values.get((label, length, depth))) for length in lengths]}
            for depth in depths
        ]

    measured = {row.scheme for row in rows}
    return {
        "name": f"{metric_name(metric)} of the answer" if metric == "nll" else metric_name(metric),
        "worst": f"{worst:{digits}} {unit}".rstrip(), "best": f"{best:{digits}} {unit}".rstrip(),
        "tables": [
            {"label": label, "lengths": length_names(lengths), "lines": lines(label)}
            for label in comparison.labels if label in measured
        ],
    }  # fmt: skip


def caption(metric: str, metrics: list[str]) -> str:
    """Caption of a plot; the loss of a task with an accuracy is that of the answers."""
    return f"{metric_name(metric)} of the answer" if metric == "nll" and is_share(metrics[0]) else metric_name(metric)


def tables(comparison: Comparison, task: str, metric: str) -> list[Table]:
    """The tables of one metric; the first of two says what its marks mean."""
    first, *differences = metric_tables(comparison, task, metric)
    caption = f"{first.caption}. {legend(comparison)}" if differences else first.caption
    return [first._replace(caption=caption), *differences]


def svg_markup(svg: str) -> Markup:
    """Mark SVG from our own plots as safe markup."""
    from markupsafe import Markup

    return Markup(svg)


@lru_cache
def html_template(file: Path) -> Template:
    """Load a Jinja template that escapes all values but markup; a name that it uses and does not get is an error."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(file.read_text(encoding="utf-8"))
