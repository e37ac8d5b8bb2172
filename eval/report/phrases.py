"""Texts of comparison reports, shared by terminal, Markdown and HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from hf_posenc.eval.catalogue import task_metadata
from hf_posenc.eval.results.comparison import SHARES

NAMES = {
    "nll": "cross-entropy loss", "ppl": "perplexity", "acc": "accuracy", "recall": "token recall",
    "exact_match": "exact match", "exact": "all tokens right", "match": "answer generated", "part": "partial match",
    "gain": "loss saved by having read the passage", "gain_over_other": "loss saved against another passage",
    "prefix_nll": "loss of all tokens so far", "prefix_ppl": "perplexity of all tokens so far",
}  # fmt: skip
UNITS = dict.fromkeys(("nll", "prefix_nll", "gain", "gain_over_other"), "nats/token")


def is_share(metric: str) -> bool:
    """Whether a metric lies between 0 and 1 and is shown in percent."""
    return metric in SHARES


def to_units(metric: str, value: float) -> float:
    """Convert a value to the units of its axis: shares to percent."""
    return 100 * value if is_share(metric) else value


def metric_name(metric: str) -> str:
    """Return the name of a metric in reports: ``cross-entropy loss`` for ``nll``."""
    return NAMES.get(metric, metric)


def axis_label(metric: str) -> str:
    """Return the name of a metric with its unit: ``cross-entropy loss (nats/token)``."""
    unit = "%" if is_share(metric) else UNITS.get(metric)
    return f"{metric_name(metric)} ({unit})" if unit else metric_name(metric)


def title(about: Mapping[str, Any]) -> str:
    """Title of a comparison, one line."""
    count, times = len(about["schemes"]), about["lengths"][-1] / about["trained_length"]
    schemes = "one positional scheme" if count == 1 else f"{count} positional schemes"
    several = about.get("models", ())
    if len(several) > 1:
        schemes = f"{len(several)} models, {count} lines"
    name = ", ".join(model_title(model["name"]) for model in several) or model_title(about["model"])
    return f"{name}: {schemes}, up to {times:g}× the trained length"


def model_title(name: str) -> str:
    """Shorten a path to the name of its folder; names of Hub models and bundled models stay."""
    parts = PurePath(name).parts
    if len(parts) < 3 and not name.startswith((".", "~", "/")):
        return name
    return "/".join(parts[-2:]) if parts[-1].startswith("checkpoint-") else parts[-1]


def task_title(task: str) -> str:
    """Return the title of one of our tasks; the name of any other task."""
    return str(task_metadata(task).get("title", task))


def format_value(metric: str, value: float, stderr: float | None) -> str:
    """Format a value as ``1.234 ± 0.012``, and a share as ``75 ± 9 %``."""
    if is_share(metric):
        return f"{100 * value:.0f} %" if stderr is None else f"{100 * value:.0f} ± {100 * stderr:.0f} %"
    digits = ".3f" if abs(value) < 100 else ".4g"
    if stderr is None:
        return f"{value:{digits}}"
    return f"{value:{digits}} ± {stderr:{'.3f' if abs(value) < 100 else '.3g'}}"
