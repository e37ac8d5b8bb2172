"""The written page: one file, nothing from elsewhere, small, with the numbers of schemes that have no formula."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from interactive import page as pages
from interactive.page import write_page

from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots import Shapes, numbers
from hf_posenc.schemes import registry
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.registry import register_scheme

MOST_BYTES = 400_000


@pytest.fixture
def own_scheme() -> Iterator[str]:
    """A scheme that the page knows nothing of: a bias of one step every four tokens."""

    @register_scheme("test_stairs")
    class Stairs(Scheme):
        """One step down every four tokens."""

        def bias(self, ctx: PositionContext) -> ToeplitzBias:
            return ToeplitzBias(lambda distance: -(distance // 4).float().expand(self.geometry.heads, *distance.shape))

    yield "test_stairs"
    registry._SCHEMES.pop("test_stairs", None)
    registry._CLASSES.pop("test_stairs", None)


@pytest.fixture
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tables of the default page, which take seconds."""
    monkeypatch.setattr(pages, "TABLES", ())


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.labelled: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [str(value) for name, value in attrs if name in ("src", "href")]


def test_the_default_page_is_one_small_file(tmp_path: Path) -> None:
    file = write_page([], tmp_path / "page.html")
    text = file.read_text(encoding="utf-8")
    assert len(text.encode()) <= MOST_BYTES
    links = Links()
    links.feed(text)
    assert links.found
    assert all(link.startswith("#") for link in links.found)
    assert "://" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    entries = {entry["label"]: entry for entry in data_of(text)["entries"]}
    assert set(entries) == {*pages.FORMULAS, *pages.TABLES}
    assert all(entry["title"] for entry in entries.values())
    assert [name for name, entry in entries.items() if "by_factor" in entry] == list(pages.TABLES)
    examples = {name for _, hash in pages.EXAMPLES for name in re.findall(r"[a-z_0-9]+", hash.split("&")[0])[1:]}
    assert examples <= set(entries)


def test_ones_own_scheme_comes_as_a_table(few_tables: None, own_scheme: str) -> None:
    entry = data_of(pages.page_html([own_scheme]))["entries"][0]
    assert entry["label"] == own_scheme
    assert [one["factor"] for one in entry["by_factor"]] == [1, 2, 4]
    assert entry["by_factor"][2]["biases"][0][:9] == [0, 0, 0, 0, -1, -1, -1, -1, -2]
    assert entry["by_factor"][2]["score"][8] == -1


def test_options_of_a_known_scheme_make_a_table(few_tables: None) -> None:
    data = data_of(pages.page_html(["rope", "self_extend:group=8"]))
    assert data["chosen"] == ["rope", "self_extend:group=8"]
    mine = data["entries"][1]["by_factor"][-1]
    wanted = numbers("self_extend:group=8", "distance_curve", trained_length=64, factor=4, shapes=Shapes())[0]
    assert mine["distance"] == wanted.numbers["used"].tolist()
    assert len(mine["mask"]) == 64
    assert mine["mask"][1] == "11" + "0" * 62


def test_text_of_the_caller_is_escaped(few_tables: None) -> None:
    text = pages.page_html(["rope"], command="hf-posenc show '</script><b>'")
    assert "<b>" not in text


def test_another_ending_is_refused(few_tables: None, tmp_path: Path) -> None:
    with pytest.raises(OptionOutOfRange, match=r"\.html"):
        write_page(["rope"], tmp_path / "page.png")
