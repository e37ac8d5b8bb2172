"""The search of the site finds Chinese terms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]

TEXT = "旋转位置编码（RoPE）的外推：KV 缓存与上下文长度，relative 相对位置编码。"
TERMS = ("旋转位置编码", "外推", "上下文长度", "KV 缓存", "KV缓存", "相对位置编码", "RoPE", "长")


@pytest.mark.slow
def test_searches_find_chinese_and_english(tmp_path: Path) -> None:
    """A page is found when the index has every term of the query; without the extension few would be."""
    pytest.importorskip("sphinx", reason="the site is built with the extra docs: pip install 'hf-posenc[docs]'")
    import chinese_search

    index = {site: terms_of_index(tmp_path / site, site) for site in ("en+zh", "en")}
    language = chinese_search.SearchEnglishAndChinese({})

    def found(query: str, terms: set[str]) -> bool:
        return {language.stem(word) for word in chinese_search.query_terms(query)} <= terms

    assert [query for query in TERMS if not found(query, index["en+zh"])] == []
    assert [query for query in TERMS if found(query, index["en"])] == ["RoPE"]  # control
    assert not found("位编", index["en+zh"])


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
