"""The Chinese pages are there, their pictures are translated, and searches find their terms."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]

import chinese_pictures as pictures  # noqa: E402

CHINESE, README = Path("docs/zh"), Path("docs/zh/README.md")
FORMULA = re.compile(r"^\$\$\n(.*?)^\$\$$|(?<![\\$])\$([^$\n]+)\$", re.MULTILINE | re.DOTALL)
PARSER = MarkdownIt("commonmark").enable("table")
PAGES = sorted(file.relative_to(ROOT) for file in (ROOT / CHINESE).rglob("*.md"))


def english_page(page: Path) -> Path:
    """The original of a page; both relative to the repository."""
    return Path("README.md") if page == README else Path("docs") / page.relative_to(CHINESE)


def test_readme_guide_and_glossary_are_translated() -> None:
    guide = {file.relative_to(ROOT) for file in (DOCS / "guide").glob("*.md")}
    expected = {Path("README.md"), Path("docs/index.md"), Path("docs/glossary.md"), *guide}
    assert expected <= {english_page(page) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_markup_is_left_in_the_text(page: Path) -> None:
    """Emphasis needs a space where it ends between a full-width punctuation mark and a character."""
    tokens = PARSER.parse(FORMULA.sub("`formula`", (ROOT / page).read_text(encoding="utf-8")))
    texts = [part.content for token in tokens for part in token.children or [] if part.type == "text"]
    assert not [text for text in texts if "*" in text or "](" in text]


def test_every_picture_is_made_and_translated() -> None:
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    used = {name for text in texts for name in re.findall(r"```\{picture\} (\S+)", text)}
    table, names = pictures.table(), pictures.scheme_names()
    assert used == set(table["captions"])
    known, seen = set(table["labels"].values()), set()
    for name in used:
        svg = (pictures.FOLDER / pictures.chinese_picture(name).file).read_text(encoding="utf-8")
        labels = {unescape(found[1]) for found in pictures.TEXT.findall(svg)}
        assert labels, name
        words = {pictures.NUMBER.sub("#", one) for one in labels - names if pictures.WORD.search(one)}
        assert words <= known, f"Run: python docs/chinese_pictures.py {name}"
        seen |= {pictures.NUMBER.sub("#", one) for one in labels}
    assert known <= seen  # a label that no plot has any more is removed


def test_a_label_keeps_its_numbers_and_an_unknown_one_is_refused() -> None:
    labels, names = {"after # of # tokens": "# 个 token 中的 # 个"}, frozenset({"rope"})
    assert pictures.label("after 7 of 4,096 tokens", labels, names) == "7 个 token 中的 4,096 个"
    assert [pictures.label(text, labels, names) for text in ("rope", "1e-05", "−3")] == ["rope", "1e-05", "−3"]
    with pytest.raises(pictures.NoTranslation, match=r"pictures.json has no Chinese for the label 'new'\. Add it"):
        pictures.translate('<svg x="1"><text y="2">new</text></svg>', labels, names)


TEXT = "旋转位置编码（RoPE）的外推：KV 缓存与上下文长度，relative 相对位置编码。"
TERMS = ("旋转位置编码", "外推", "上下文长度", "KV 缓存", "KV缓存", "相对位置编码", "RoPE", "长")


@pytest.mark.slow
def test_searches_find_chinese_and_english(tmp_path: Path) -> None:
    """A page is found when the index has every term of the query; without the extension few would be."""
    chinese_search = imported_with_sphinx()
    index = {site: terms_of_index(tmp_path / site, site) for site in ("en+zh", "en")}
    language = chinese_search.SearchEnglishAndChinese({})

    def found(query: str, terms: set[str]) -> bool:
        return {language.stem(word) for word in chinese_search.query_terms(query)} <= terms

    assert [query for query in TERMS if not found(query, index["en+zh"])] == []
    assert [query for query in TERMS if found(query, index["en"])] == ["RoPE"]  # control
    assert not found("位编", index["en+zh"])


@pytest.mark.skipif(not shutil.which("node"), reason="node runs the browser's half of the search")
def test_a_browser_splits_queries_as_python_does() -> None:
    chinese_search = imported_with_sphinx()
    queries = [*TERMS, TEXT, "a-b c", "", "旋"]
    script = f"{chinese_search.SearchEnglishAndChinese.js_splitter_code}\nconst queries = {json.dumps(queries)};"
    script += "\nconsole.log(JSON.stringify(queries.map(splitQuery)));"
    said = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True).stdout
    assert json.loads(said) == [chinese_search.query_terms(query) for query in queries]


def imported_with_sphinx():  # type: ignore[no-untyped-def]
    """The extension of the search."""
    pytest.importorskip("sphinx", reason="the site is built with the extra docs: pip install 'hf-posenc[docs]'")
    import chinese_search

    return chinese_search


def terms_of_index(folder: Path, language: str) -> set[str]:
    """Build a site of one page, and read the terms that its index has."""
    folder.mkdir()
    settings = {"extensions": ["chinese_search"], "html_search_language": language, "html_theme": "basic"}
    (folder / "conf.py").write_text("\n".join(f"{name} = {value!r}" for name, value in settings.items()))
    (folder / "index.rst").write_text(f"T\n=\n\n{TEXT}\n", encoding="utf-8")
    words = [sys.executable, "-m", "sphinx", "-q", str(folder), str(folder / "site")]
    path = {"PYTHONPATH": str(DOCS / "_ext"), "PATH": "/usr/bin:/bin"}
    subprocess.run(words, check=True, capture_output=True, env=path)
    text = (folder / "site" / "searchindex.js").read_text(encoding="utf-8")
    return set(json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))["terms"])
