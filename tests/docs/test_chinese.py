"""The Chinese pages are in step with their originals, their pictures are translated, and searches find their terms."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]

import chinese_in_step as in_step  # noqa: E402
import chinese_pictures as pictures  # noqa: E402
from page_sections import FORMULA, PARSER, as_code, sections  # noqa: E402

PAGES = in_step.chinese_pages(ROOT)
ROTATION, DERIVATION = Path("docs/zh/guide/rotation.md"), Path("docs/zh/derivations/rope.md")
# A page, what is changed in its original, and what has to be said then.
CHANGES = {
    "heading": (ROTATION, "## Two dimensions", "### Two dimensions", "headings are"),
    "new section": (ROTATION, "## Two dimensions", "## New\n\n## Two dimensions", "headings are"),
    "paragraph": (ROTATION, "## Two dimensions\n", "## Two dimensions\n\nNew.\n", "blocks are"),
    "row": (
        ROTATION,
        "| [partial](../schemes/partial.md) |",
        "| |\n| [partial](../schemes/partial.md) |",
        "blocks are",
    ),
    "code": (ROTATION, "torch.manual_seed(0)", "torch.manual_seed(1)", "code block 2 differs"),
    "code in a sentence": (ROTATION, "`hf-posenc explain rope`", "`hf-posenc explain base`", "words in code"),
    "picture": (ROTATION, "```{picture} rope2d", "```{picture} score", "blocks are"),
    "link": (ROTATION, "../schemes/abf.md", "../schemes/ntk.md", "links missing: docs/schemes/ntk.md"),
    "translated link": (ROTATION, "(longer.md)", "(remaps.md)", "links missing: docs/zh/guide/remaps.md"),
    "number": (ROTATION, "500,000", "600,000", "numbers missing: 600,000"),
    "formula": (DERIVATION, r"f(q, 0) = q", r"f(q, 0) = k", "code block 1 differs"),
    "formula in a sentence": (DERIVATION, r"$R(q, i) = |q|$", r"$R(q, i) = q$", "words in code missing: R(q, i) = q"),
    "sentence": (ROTATION, "Rotate", "Turn", "the original has changed"),
}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_is_in_step_with_its_original(page: Path) -> None:
    assert not list(in_step.differences(ROOT, page)), "See what differs: python docs/chinese_in_step.py"


def test_readme_guide_and_glossary_are_translated() -> None:
    guide = {file.relative_to(ROOT) for file in (DOCS / "guide").glob("*.md")}
    expected = {Path("README.md"), Path("docs/index.md"), Path("docs/glossary.md"), *guide}
    assert expected <= {in_step.english_page(page) for page in PAGES}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_original_is_noticed(change: str, tmp_path: Path) -> None:
    """Control: each kind of drift is reported, on the page that has it and on no other."""
    changed, before, after, said = CHANGES[change]
    for page in {*PAGES, *map(in_step.english_page, PAGES)}:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    shutil.copy(ROOT / in_step.TRANSLATED, tmp_path / in_step.TRANSLATED)
    original = tmp_path / in_step.english_page(changed)
    text = original.read_text(encoding="utf-8")
    assert before in text
    original.write_text(text.replace(before, after, 1), encoding="utf-8")
    assert said in "\n".join(in_step.differences(tmp_path, changed))
    for other in set(PAGES) - {changed}:
        assert list(in_step.differences(tmp_path, other)) == list(in_step.differences(ROOT, other))


def test_line_breaks_and_generated_tables_do_not_count_as_a_change(tmp_path: Path) -> None:
    page = "# One\n\nA {}.\n\n<!-- rows: begin -->\n{}<!-- rows: end -->\n\nEnd.\n"
    (tmp_path / "page.md").write_text(page.format("sentence\nof two lines", ""), encoding="utf-8")
    (tmp_path / "other.md").write_text(page.format("sentence of\ntwo lines", "| a |\n|---|\n| 1 |\n"), encoding="utf-8")
    first, second = (sections(tmp_path, Path(name), Path(name), {}) for name in ("page.md", "other.md"))
    assert [one.digest for one in first] == [one.digest for one in second]
    assert first[1].blocks != second[1].blocks  # which a translation has to have, too


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_markup_is_left_in_the_text(page: Path) -> None:
    """Emphasis needs a space where it ends between a full-width punctuation mark and a character."""
    tokens = PARSER.parse(FORMULA.sub(as_code, (ROOT / page).read_text(encoding="utf-8")))
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
