"""The site builds without warnings: links, names and pictures resolve."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import browser

pytest.importorskip("sphinx", reason="the site is built with the extra docs: pip install 'hf-posenc[docs]'")
pytest.importorskip("myst_nb", reason="likewise")
pytest.importorskip("furo", reason="likewise")
pytest.importorskip("sphinx-mathjax-offline", reason="likewise")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WIDTHS = (1440, 390)  # pixels: a desktop, where no formula may need to scroll, and a phone


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-n",
        "-q",
        "-b",
        "html",
        "-d",
        str(target / "trees"),
    ]
    return subprocess.run([*words, str(source), str(target / "site")], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("built")
    built = build(ROOT / "docs", folder)
    assert built.returncode == 0, built.stderr
    return folder / "site"


def with_formulas(site: Path) -> list[str]:
    """The pages that have formulas."""
    pages = {str(file.relative_to(site)): file.read_text(encoding="utf-8") for file in site.rglob("*.html")}
    return sorted(name for name, text in pages.items() if 'class="math' in text)


def test_the_site_is_built_without_a_warning(site: Path) -> None:
    pages = {str(file.relative_to(site)) for file in site.rglob("*.html")}
    assert {
        "index.html",
        "start.html",
        "guide/rotation.html",
        "schemes/yarn.html",
        "commands.html",
        "api.html",
        "derivations/rope.html",
        "schemes/gallery.html",
        "troubleshooting.html",
        "notebooks/3_fine_tune.html",
    } <= pages
    notebook = (site / "notebooks" / "3_fine_tune.html").read_text(encoding="utf-8")
    assert "loss at 512 minus loss at 256 tokens" in notebook.split('class="cell_output')[-2]  # it was executed
    pictures = (site / "notebooks" / "1_see_encodings.html").read_text(encoding="utf-8")
    assert pictures.count("<img") >= 7
    assert "&lt;Figure" not in pictures  # a figure that is not shown prints as this
    assert "5_write_scheme.ipynb" in (site / "notebooks" / "index.html").read_text(encoding="utf-8")
    text = (site / "limits.html").read_text(encoding="utf-8")
    assert 'href="api.html#hf_posenc.errors.NoEffect"' in text


def test_chinese_pages_have_their_language_and_links(site: Path) -> None:
    chinese, english = (
        (site / folder / "guide" / "rotation.html").read_text(encoding="utf-8") for folder in ("zh", "")
    )
    assert '<html class="no-js" lang="zh-CN"' in chinese
    assert 'href="../../guide/rotation.html" hreflang="en"' in chinese
    assert 'href="../zh/guide/rotation.html" hreflang="zh-CN"' in english
    assert "本页内容" in chinese
    assert "本页内容" not in english


def test_a_reader_fetches_nothing_from_elsewhere(site: Path) -> None:
    for file in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)\b[^>]*?\b(?:src|href)="([^"]*)"', file.read_text(encoding="utf-8"))
        assert not [address for address in loaded if re.match(r"(?:https?:)?//", address)], file.name


@pytest.mark.skipif(browser.browser() is None, reason="measures with Chromium: apt-get install chromium")
def test_no_formula_is_clipped_on_a_desktop_or_a_phone(site: Path, tmp_path: Path) -> None:
    pages = with_formulas(site)
    assert len(pages) > 60
    for found in browser.measure(site, [(page, width) for width in WIDTHS for page in pages], tmp_path):
        assert found["formulas"] > 0, found  # typeset at all, without a network
        assert not found["errors"], found
        assert not found["clipped"], found
        assert found["scrolled"] == 0 or found["width"] < WIDTHS[0], found


@pytest.mark.skipif(browser.browser() is None, reason="likewise")
def test_a_clipped_formula_is_noticed(site: Path, tmp_path: Path) -> None:
    """Control: a formula that is cut, one that makes the page wider, one that is no LaTeX, and one that scrolls."""
    script = (site / "_static" / "tex-svg.js").as_uri()
    (tmp_path / "tex-svg.js").symlink_to(script.removeprefix("file://"))
    for name, style in {"cut": "overflow: hidden", "wide": "", "scrolls": "overflow-x: auto"}.items():
        formula = " + ".join(f"x_{{{n}}}" for n in range(60))
        (tmp_path / f"{name}.html").write_text(
            f'<!doctype html><script src="tex-svg.js"></script><div style="{style}">\\[{formula}\\]</div>'
        )
    (tmp_path / "wrong.html").write_text(r'<!doctype html><script src="tex-svg.js"></script>\[\begin{cases} x\]')
    names = ("cut", "wide", "scrolls", "wrong")
    found = browser.measure(tmp_path, [(f"{name}.html", 390) for name in names], tmp_path / "profile")
    assert [bool(one["clipped"]) for one in found] == [True, True, False, False]
    assert [one["scrolled"] for one in found] == [0, 0, 1, 0]
    assert [bool(one["errors"]) for one in found] == [False, False, False, True]


def small_site(tmp_path: Path) -> Path:
    """An empty folder with the configuration of the site, but for its own extensions, most of which need its pages."""
    source = tmp_path / "docs"
    source.mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", source)
    conf = (source / "conf.py").read_text(encoding="utf-8")
    for extension in (*(ROOT / "docs" / "_ext").glob("*.py"), *(ROOT / "docs").glob("make_*.py")):
        conf = conf.replace(f'    "{extension.stem}",\n', "")
    (source / "conf.py").write_text(conf.replace('html_static_path = ["_static"]', ""), encoding="utf-8")
    return source


def test_a_failing_notebook_is_noticed(tmp_path: Path) -> None:
    """Control: a cell that raises ends the build."""
    source = small_site(tmp_path)
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None}
    notebook = json.loads((ROOT / "docs" / "notebooks" / "1_see_encodings.ipynb").read_text(encoding="utf-8"))
    notebook["cells"] = [notebook["cells"][0], cell | {"source": ["raise RuntimeError('as planned')"]}]
    (source / "index.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    built = build(source, tmp_path)
    assert built.returncode != 0
    assert "CellExecutionError" in built.stderr
    assert "index.ipynb" in built.stderr


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    """Control: a site of one page with two of them."""
    source = small_site(tmp_path)
    (source / "index.md").write_text("# One\n\n[](nowhere.md) [](#hf_posenc.errors.Nothing)\n", encoding="utf-8")
    built = build(source, tmp_path)
    assert built.returncode != 0
    assert "nowhere.md" in built.stderr
    assert "hf_posenc.errors.Nothing" in built.stderr


QUERIES = {
    "context extension": "choose", "length extrapolation": "choose", "KV cache": "limits", "long context": "index",
    "context length": "start", "context window": "glossary", "position embedding": "index", "StreamingLLM": "choose",
    "attention mask": "limits", "passkey retrieval": "evaluation",
}  # fmt: skip
"""What people type, and a page that the search of the site has to find."""


def found(index: dict[str, Any], query: str) -> set[str]:
    """The pages with every word of a query, as the search in the browser finds them."""
    from sphinx.search.en import SearchEnglish

    language = SearchEnglish({})
    terms = [language.stem(word.lower()) for word in query.split()]
    tables = index["terms"], index["titleterms"]
    pages = [{page for table in tables for page in as_list(table.get(term, []))} for term in terms]
    return {index["docnames"][page] for page in set.intersection(*pages)}


def as_list(pages: int | list[int]) -> list[int]:
    """The index has a number where a term is on one page only."""
    return [pages] if isinstance(pages, int) else pages


@pytest.mark.parametrize("query", QUERIES)
def test_the_search_finds_what_people_type(site: Path, query: str) -> None:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))
    assert QUERIES[query] in found(index, query)
    assert not found(index, "nosuchwordanywhere")  # control


def test_pages_describe_themselves(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    described = re.search(r'<meta content="([^"]*)" (?:lang="en" |xml:lang="en" )*name="description"', text)
    assert described is not None
    assert "positional encoding" in described[1]
