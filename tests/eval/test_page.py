"""The page and the other files: every number, nothing foreign, readable by its markup alone."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from hf_posenc.eval.report.exports import comparison_text, csv_text
from hf_posenc.eval.report.page import curves_figure, page_html
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.rows import Row
from hf_posenc.eval.results.store import Record

pytest.importorskip("matplotlib")


def comparison(
    labels: Any = ("unpatched", "yarn"), lengths: Any = (256, 512), tasks: Any = ("posenc_ppl", "posenc_passkey"),
    depths: Any = (0.0, 0.5, 1.0), model: str = "m", command: str | None = "hf-posenc compare -m m",
) -> Comparison:  # fmt: skip
    """Made-up numbers in every place."""
    records = []
    for number, label in enumerate(labels):
        for task in tasks:
            for length in lengths:
                if task == "posenc_ppl":
                    loss = 2.0 + 0.1 * number + length / 4096
                    rows = [Row("x", "x", task, length, None, "nll", loss, 0.1, 16)]
                    rows.append(Row("x", "x", task, length, None, "ppl", math.exp(loss), 0.3, 16))
                else:
                    shares = [round(1.0 - depth * length / 4096 - 0.01 * number, 3) for depth in depths]
                    rows = [
                        Row("x", "x", task, length, d, "acc", s, 0.1, 8) for d, s in zip(depths, shares, strict=True)
                    ]
                    rows.append(Row("x", "x", task, length, None, "acc", sum(shares) / len(shares), 0.05, 8))
                    rows.append(Row("x", "x", task, length, None, "nll", 1.0, 0.05, 8))
                records.append(Record(f"{label}{task}{length}", label, task, length, "done", "", rows, 1.0, {}))
    about = {
        "model": model, "model_scheme": None, "trained_length": lengths[0], "lengths": list(lengths),
        "tasks": list(tasks),
        "schemes": [
            {"label": label, "scheme": None if label == "unpatched" else label, "options": {}, "needs_training": False}
            for label in labels
        ],
        "factor_per_length": False, "samples": 16, "scored": 64, "keys": 8, "depths": list(depths), "seed": 0,
        "limit": None,
        "text": None, "versions": {"python": "3.11", "torch": "2.13"}, "digests": {"model": "abc"}, "command": command,
    }  # fmt: skip
    return Comparison(about, records)


class Tags(HTMLParser):
    """Start tags, their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def test_the_page_is_self_contained() -> None:
    page = page_html(comparison())
    tags = read(page)
    assert tags.tags["script"] == 0
    assert "default-src 'none'" in page
    fetched = [value for name, value in tags.attributes if name in {"src", "href", "xlink:href", "action", "data"}]
    assert all(value and value.startswith(("#", "data:image/png")) for value in fetched)
    assert "://" not in page
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)


def test_every_number_is_in_every_file() -> None:
    made = comparison()
    tables = [page_html(made), comparison_text(made)]
    for row in made.rows:
        if row.metric == "nll" and row.task == "posenc_ppl":
            assert all(f"{row.value:.3f} ± {row.stderr:.3f}" in text for text in tables)
    lines = list(csv.DictReader(io.StringIO(csv_text(made))))
    assert [float(line["value"]) for line in lines] == [row.value for row in made.rows]
    assert {line["scheme"] for line in lines} == {"unpatched", "yarn"}


def test_a_page_of_refusals_only() -> None:
    made = comparison()
    records = [
        Record(r.key, r.scheme, r.task, r.length, "refused", "It is not defined.", [], 0.0, {}) for r in made.records
    ]
    page = page_html(Comparison(made.about, records))
    assert "No cell gave a number" in page
    assert page.count("Refused. It is not defined.") == 1, "once for all"


TWO = ("a · unpatched", "a · yarn", "b · unpatched", "b · yarn", "b · pi")


def of_two_models() -> Comparison:
    """Lines of two models with trained lengths of their own; the first model cannot read the longest length."""
    made = comparison(TWO)
    schemes = [
        {**entry, "scheme": None if "unpatched" in entry["label"] else "x", "model": entry["label"][0],
         "model_digest": entry["label"][0]}
        for entry in made.about["schemes"]
    ]  # fmt: skip
    models = [{"name": n, "digest": n, "scheme": None, "trained_length": t} for n, t in (("a", 256), ("b", 512))]
    records = [
        replace(r, state="refused", reason="Too long.", rows=[])
        if (r.scheme, r.length) == (TWO[0], 512) else r
        for r in made.records
    ]  # fmt: skip
    return Comparison(made.about | {"schemes": schemes, "models": models}, records)


def test_each_model_is_plotted_over_its_own_baseline() -> None:
    made = of_two_models()
    canvas, _ = curves_figure(made, "posenc_ppl", "nll")
    panels = {axes.get_title(loc="left"): axes.get_lines() for axes in canvas.axes}
    assert list(panels) == [label for label in TWO if "unpatched" not in label]
    for label, (under, line, trained) in panels.items():
        start = 2.0 + 0.1 * TWO.index(f"{label[0]} · unpatched") + 256 / 4096
        assert under.get_ydata()[0] == pytest.approx(start)
        assert len(line.get_xdata()) == 2
        assert trained.get_xdata()[0] == {"a": 256, "b": 512}[label[0]]
        assert (under.get_marker() == "o") == (label[0] == "a"), "a single point needs a marker to be seen"


def test_a_cell_without_a_number_names_its_own_model() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(of_two_models()))))
    assert {row["model"] for row in rows if row["note"]} == {"a"}
    assert {row["model"] for row in rows if not row["note"]} == {"a", "b"}
