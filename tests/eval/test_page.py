"""The page and the other files: every number, nothing foreign, readable by its markup alone."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from hf_posenc.eval.report.exports import comparison_text, csv_text
from hf_posenc.eval.report.page import page_html
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.rows import Row
from hf_posenc.eval.results.store import Record

from .made_up import made_up

pytest.importorskip("matplotlib")

DEPTHS = (0.0, 0.5, 1.0)


def comparison(labels: tuple[str, ...] = ("unpatched", "yarn")) -> Comparison:
    """Made-up numbers in every place."""
    records = []
    for number, label in enumerate(labels):
        for task in ("posenc_ppl", "posenc_passkey"):
            for length in (256, 512):
                if task == "posenc_ppl":
                    loss = 2.0 + 0.1 * number + length / 4096
                    rows = [Row("x", "x", task, length, None, "nll", loss, 0.1, 16)]
                    rows.append(Row("x", "x", task, length, None, "ppl", math.exp(loss), 0.3, 16))
                else:
                    shares = [round(1.0 - depth * length / 4096 - 0.01 * number, 3) for depth in DEPTHS]
                    rows = [
                        Row("x", "x", task, length, d, "acc", s, 0.1, 8) for d, s in zip(DEPTHS, shares, strict=True)
                    ]
                    rows.append(Row("x", "x", task, length, None, "acc", sum(shares) / len(shares), 0.05, 8))
                    rows.append(Row("x", "x", task, length, None, "nll", 1.0, 0.05, 8))
                records.append(Record(f"{label}{task}{length}", label, task, length, "done", "", rows, 1.0, {}))
    return made_up(records, command="hf-posenc compare -m m")


class Tags(HTMLParser):
    """Start tags and their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs


def test_the_page_is_self_contained() -> None:
    page = page_html(comparison())
    tags = Tags(page)
    assert "script" not in tags.tags
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


def test_a_cell_without_a_number_names_its_own_model() -> None:
    """Of two models, the first of which cannot read the longest length."""
    made = comparison(("a · unpatched", "b · unpatched"))
    schemes = [{**entry, "scheme": None, "model": entry["label"][0]} for entry in made.about["schemes"]]
    records = [
        replace(record, state="refused", reason="Too long.", rows=[])
        if (record.scheme[0], record.length) == ("a", 512) else record
        for record in made.records
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(csv_text(Comparison(made.about | {"schemes": schemes}, records)))))
    assert {row["model"] for row in rows if row["note"]} == {"a"}
    assert {row["model"] for row in rows if not row["note"]} == {"a", "b"}
