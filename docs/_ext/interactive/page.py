"""Write the interactive page: one HTML file with its style, its scripts and its tables inside."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots.compose import PlotRequest
from hf_posenc.insight.plots.models import Shapes
from hf_posenc.schemes.entry import Entry, Given, entries_of
from interactive.script import formulas, views
from interactive.tables import table

FOLDER = Path(__file__).parent
TITLE = "Positional encodings at work"

# Schemes whose formulas are in js/formulas/schemes.js, with the options and shapes that sliders set.
FORMULAS = (
    "none", "rope", "abf", "pi", "ntk", "ntk_parts", "yarn", "llama3", "alibi", "rerope", "leaky_rerope", "self_extend",
    "dca", "window", "sinks", "lm_infinite", "integer", "norm01", "binary", "sinusoidal",
)  # fmt: skip
TABLES = ("dynamic_ntk", "xpos", "string", "t5", "kerple", "fire", "sandwich", "learned")  # others on the default page
CHOSEN = ("rope", "yarn", "ntk")  # shown first, where no scheme is named
EXAMPLES = (
    ("NTK against YaRN at 8×", "#schemes=rope+pi+ntk+yarn&factor=8&trained=64"),
    ("a larger base", "#schemes=rope+abf&base=10000&distance=100&factor=8"),
    ("remaps", "#schemes=rerope+leaky_rerope+self_extend+dca&factor=4&distance=150"),
    ("masks", "#schemes=window+sinks+lm_infinite&factor=4&position=150"),
    ("ALiBi's heads", "#schemes=alibi+t5+kerple&distance=20"),
    ("M_k of the sinusoid", "#schemes=sinusoidal+binary&dims=32&distance=3"),
)


def page_html(schemes: Iterable[Given] = (), shapes: Shapes | None = None, command: str = "", **lengths: Any) -> str:
    """Render the page.

    Args:
        schemes: schemes shown first, as in `hf_posenc.insight.plots.show`; also those of others.
        shapes: of the model that tables are computed for.
        command: what wrote the page, shown at its end.
        **lengths: ``factor``, ``target_length``, ``trained_length`` of tables, instead of several factors.

    Raises:
        PosEncError: a scheme or an option is refused, or needs the layers of a model.
    """
    given = list(schemes)
    own = entries_of(given) if given else []
    request = PlotRequest(own, lengths=lengths, shapes=shapes or Shapes())
    labels = {entry.label for entry in own}
    others = [entry for entry in entries_of((*FORMULAS, *TABLES)) if entry.label not in labels]
    data = {
        "chosen": [entry.label for entry in own] or list(CHOSEN),
        "entries": [described(entry, request) for entry in (*own, *others)],
    }
    return template().render(
        title=TITLE, style=text_of("page.css"), formulas=formulas(), views=views(), data=script_json(data),
        examples=EXAMPLES, command=escape(command),
    )  # fmt: skip


def write_page(schemes: Iterable[Given], path: str | Path, **how: Any) -> Path:
    """Write the page; arguments and errors as in `page_html`.

    Raises:
        OptionOutOfRange: the file does not end in ``.html``.
    """
    file = Path(path)
    if file.suffix.lower() != ".html":
        raise OptionOutOfRange(f"The interactive page's file must end in .html, got {str(path)!r}. Rename it.")
    write_bytes(file, page_html(schemes, **how).encode())
    return file


def described(entry: Entry, request: PlotRequest) -> dict[str, Any]:
    """What the page knows of a scheme: its title, and a table where it has no formula, or options of its own."""
    from hf_posenc.schemes.spec import parts_of_spec

    parts = [cls.record for cls, _ in parts_of_spec(entry.scheme)] if entry.scheme else []
    title = "; ".join(part.summary for part in parts)
    if [part.name for part in parts] == [entry.label] and entry.label in FORMULAS:
        return {"label": entry.label, "title": title}
    return {"title": title, **table(entry, request)}


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def text_of(name: str) -> str:
    """A file of this folder."""
    return (FOLDER / name).read_text(encoding="utf-8")


def template() -> Any:
    """The Jinja template; values are inserted as they are, since all are the package's own or escaped."""
    from jinja2 import Environment, StrictUndefined

    return Environment(autoescape=False, undefined=StrictUndefined).from_string(text_of("page.html"))
