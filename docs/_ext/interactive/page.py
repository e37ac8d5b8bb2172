"""Write the interactive page: one HTML file with its style, its scripts and its tables inside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from hf_posenc.schemes.registry import scheme_record
from interactive.script import formulas, views
from interactive.tables import table

FOLDER = Path(__file__).parent
TITLE = "Positional encodings at work"

# Schemes whose formulas are in js/formulas/schemes.js, with the options and shapes that sliders set.
FORMULAS = (
    "none", "rope", "abf", "pi", "ntk", "ntk_parts", "yarn", "llama3", "alibi", "rerope", "leaky_rerope", "self_extend",
    "dca", "window", "sinks", "lm_infinite", "integer", "norm01", "binary", "sinusoidal",
)  # fmt: skip
TABLES = ("dynamic_ntk", "xpos", "string", "t5", "kerple", "fire", "sandwich", "learned")
CHOSEN = ("rope", "yarn", "ntk")  # shown first
EXAMPLES = (
    ("NTK against YaRN at 8×", "#schemes=rope+pi+ntk+yarn&factor=8&trained=64"),
    ("a larger base", "#schemes=rope+abf&base=10000&distance=100&factor=8"),
    ("remaps", "#schemes=rerope+leaky_rerope+self_extend+dca&factor=4&distance=150"),
    ("masks", "#schemes=window+sinks+lm_infinite&factor=4&position=150"),
    ("ALiBi's heads", "#schemes=alibi+t5+kerple&distance=20"),
    ("M_k of the sinusoid", "#schemes=sinusoidal+binary&dims=32&distance=3"),
)


def page_html(tables: Sequence[str] = TABLES) -> str:
    """Render the page; for the schemes in ``tables``, the package computes tables of numbers."""
    entries: list[dict[str, Any]] = [{"label": name, "title": scheme_record(name).summary} for name in FORMULAS]
    entries += [{"title": scheme_record(name).summary, **table(name)} for name in tables]
    template = Environment(autoescape=False, undefined=StrictUndefined).from_string(text_of("page.html"))
    return template.render(
        title=TITLE, style=text_of("page.css"), formulas=formulas(), views=views(), examples=EXAMPLES,
        data=script_json({"chosen": list(CHOSEN), "entries": entries}),
    )  # fmt: skip


def script_json(value: Any) -> str:
    """Encode JSON so that it can stand inside a script element."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def text_of(name: str) -> str:
    """A file of this folder."""
    return (FOLDER / name).read_text(encoding="utf-8")
