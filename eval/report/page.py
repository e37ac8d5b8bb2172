"""The comparison as one page that stands alone: pictures inside, no script, nothing fetched.

The template escapes everything that is put into it. The only exception are the pictures, whose every name has been
escaped by matplotlib and by `hf_posenc.core.plotting.svg`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from hf_posenc.eval.report.page_plots import curves, heat_maps
from hf_posenc.eval.report.phrases import (
    axis,
    grid,
    is_share,
    method,
    named,
    remarks,
    task_title,
    title,
)
from hf_posenc.eval.results.comparison import Comparison

TEMPLATE = "page.html"


def page_html(comparison: Comparison) -> str:
    """The page as HTML."""
    about = comparison.about
    return template().render(
        title=title(about),
        remarks=remarks(comparison),
        sections=[section(comparison, task) for task in comparison.tasks()],
        method=method(about),
        command=about["command"],
        versions=about["versions"],
        digests=about["digests"],
    )


def section(comparison: Comparison, task: str) -> dict[str, Any]:
    """Pictures and tables of one task."""
    metrics = comparison.metrics(task)
    swept = [
        m for m in metrics if any(r.length is not None for r in comparison.rows if (r.task, r.metric) == (task, m))
    ]
    drawn = [metric for metric in swept if metric != "ppl"][:2]  # perplexity says what the loss says
    shares = [metric for metric in comparison.metrics(task, depth=True) if is_share(metric)][:1]
    return {
        "name": task,
        "title": task_title(task),
        "curves": [
            {"caption": caption(metric, metrics), "picture": picture(curves(comparison, task, metric))}
            for metric in drawn
        ],
        "maps": [
            {"label": label, "picture": picture(svg)}
            for metric in shares
            for label, svg in heat_maps(comparison, task, metric).items()
        ],
        "share": named(shares[0]) if shares else "",
        "tables": [table(comparison, task, metric) for metric in metrics],
    }


def caption(metric: str, metrics: list[str]) -> str:
    """What a picture shows; beside a share of right answers, the loss is that of the answers."""
    return f"{named(metric)} of the answer" if metric == "nll" and is_share(metrics[0]) else named(metric)


def table(comparison: Comparison, task: str, metric: str) -> dict[str, Any]:
    """Entries down, lengths across."""
    head, lines = grid(comparison, task, metric)
    return {"caption": axis(metric), "head": head, "lines": lines}


def picture(svg: str) -> Any:
    """SVG that we made, as markup."""
    from markupsafe import Markup

    return Markup(svg)


@lru_cache(maxsize=1)
def template() -> Any:
    """The template, from the file beside this one."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((Path(__file__).parent / TEMPLATE).read_text(encoding="utf-8"))
