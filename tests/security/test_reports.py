"""Hostile names in reports, tables and on the terminal are shown and have no effect."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser

import pytest

from hf_posenc.cli import output
from hf_posenc.eval.report.exports import comparison_text, csv_text
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.rows import Row
from hf_posenc.eval.results.store import Record

SIGN = "dialog-was-here"
RUN = f"document.title='{SIGN}'"
PAYLOADS = [
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f'"><svg onload={RUN}>',
    f"'><body onload={RUN}>",
    f"javascript:{RUN}",
    f"<a href=javascript:{RUN}>x</a>",
    f"<iframe srcdoc='<script>{RUN}</script>'>",
    "<img src=http://127.0.0.1:9/x>",
    "<style>@import 'http://127.0.0.1:9';</style>",
    "<form action=http://127.0.0.1:9><input autofocus onfocus=alert(1)>",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{x}}{% endfor %}",
    "\u202egpj.exe",
    "\x1b[31mred\x1b[0m",
    "\x1b]8;;http://x\x07link\x1b]8;;\x07",
    "a\rb",
    "\x00",
    "=1+1",
    "\t=1",
    "[red]x[/red]",
    "[link=http://x]y[/link]",
]
STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def hostile(payload: str) -> Comparison:
    """A comparison, every name of which is the payload."""
    row = Row(payload, payload, payload, 64, None, "nll", 1.0, 0.1, 4)
    lost = Record("b", payload, payload, 128, "refused", payload, [], 0.1, {})
    records = [Record("a", payload, payload, 64, "done", "", [row], 0.1, {}), lost]
    about = {
        **dict.fromkeys(("model", "model_scheme", "text", "command"), payload), "tasks": [payload],
        "schemes": [{"label": payload, "scheme": payload, "options": {payload: payload}, "needs_training": True}],
        "versions": {payload: payload}, "digests": {payload: payload}, "trained_length": 32, "lengths": [64, 128],
        "samples": 4, "scored": 8, "keys": 1, "depths": [0.5], "seed": 0, "limit": None,
    }  # fmt: skip
    return Comparison(about, records)


class Elements(HTMLParser):
    """Which elements and attributes a page has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, attrs))


@pytest.mark.parametrize("some", range(4))
def test_names_add_nothing_that_runs_to_the_page(some: int) -> None:
    """The same elements as with a harmless name, none of which runs or fetches anything."""
    payload = " ".join(PAYLOADS[some::4])
    page, plain = Elements(page_html(hostile(payload))), Elements(page_html(hostile("plain")))
    assert [tag for tag, _ in page.seen if tag not in ("path", "use", "g")] == [
        tag for tag, _ in plain.seen if tag not in ("path", "use", "g")
    ]
    assert not {"script", "iframe", "object", "embed", "base", "form", "link"} & {tag for tag, _ in page.seen}
    for _, attributes in page.seen:
        for name, value in attributes:
            assert not name.startswith("on")
            assert name not in ("href", "src", "xlink:href", "action") or str(value).startswith(("#", "data:"))


@pytest.mark.parametrize("payload", PAYLOADS, ids=ascii)
def test_no_cell_of_the_csv_is_a_formula(payload: str) -> None:
    for line in list(csv.reader(io.StringIO(csv_text(hostile(payload)))))[1:]:
        for cell in line[:3] + line[5:6] + line[11:]:
            assert not cell.startswith(STARTS), cell


@pytest.mark.parametrize("payload", PAYLOADS, ids=ascii)
def test_markdown_holds_no_html(payload: str) -> None:
    text = comparison_text(hostile(payload))
    shown = "\n".join(line for line in text.splitlines() if not line.startswith("    "))  # the command is a code block
    assert not re.search(r"<\w|</", re.sub(r"`[^`]*`", "", shown)), shown


@pytest.mark.parametrize("payload", PAYLOADS, ids=ascii)
def test_names_send_no_control_characters_to_the_terminal(payload: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.show_table((payload, "x"), [(payload, 1)], title=payload)
    output.show_text(payload)
    output.fail(payload)
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert all(c.isprintable() or c in "\n\t" for c in text), ascii(text)
    if payload.startswith("["):
        assert captured.out.count(payload) >= 2  # as text, not as markup


@pytest.mark.parametrize(
    "show", [output.show_text, output.fail, output.show_json, lambda t: output.show_table(("a",), [(t,)])]
)
def test_secrets_are_not_shown(show: object, capsys: pytest.CaptureFixture[str]) -> None:
    show("no access with hf_" + "aB3" * 10)  # type: ignore[operator]
    captured = capsys.readouterr()
    assert "no access with hf_" in captured.out + captured.err
    assert not re.search(r"hf_[A-Za-z0-9]{20,}", captured.out + captured.err)
