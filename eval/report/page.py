"""Comparison as one self-contained HTML page: inline SVG plots, no scripts, no external resources.

The template escapes everything put into it, except the plots, whose texts matplotlib and `hf_posenc.core.plotting`
escape.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_posenc.eval.report.depth_tables import depth_tables, scale_of
from hf_posenc.eval.report.page_plots import curves
from hf_posenc.eval.report.phrases import is_share, metric_name, task_title, title
from hf_posenc.eval.report.remarks import method, remarks
from hf_posenc.eval.report.tables import Table, legend, metric_tables, summaries
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.gate import shown_metrics

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
    """Collect the heat maps of one metric, one per entry, and the colour scale they share."""
    scale = scale_of(comparison, task, metric)
    return {
        "name": f"{metric_name(metric)} of the answer" if metric == "nll" else metric_name(metric),
        "worst": scale.label(scale.worst), "best": scale.label(scale.best),
        "tables": depth_tables(comparison, task, metric, scale),
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
