"""Search in English and Chinese on one site: Chinese text is indexed by single characters and pairs of neighbours.

Pairs need no dictionary, so a term that no dictionary has, such as 旋转位置编码, is found by the same rule as all
others. A query is split likewise in the browser: a page is found when it has every pair of the query.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from sphinx.search.en import SearchEnglish

CHARACTERS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
RUN = re.compile(f"[{CHARACTERS}]+")
WORD = re.compile(r"\w+")


class SearchEnglishAndChinese(SearchEnglish):
    """English words by their stems, Chinese characters alone and in pairs."""

    lang = "en+zh"  # language_name stays English: Sphinx makes the name of the stemmer of it
    js_splitter_code = f"""
var splitQuery = (query) =>
  query
    .replace(/[{CHARACTERS}]+/g, (run) => {{
      const pairs = [...run].slice(1).map((character, before) => run[before] + character);
      return ` ${{pairs.length ? pairs.join(" ") : run}} `;
    }})
    .split(/[^\\p{{Letter}}\\p{{Number}}_\\p{{Emoji_Presentation}}]+/gu)
    .filter((term) => term);
"""

    def split(self, input: str) -> list[str]:
        """Split a text into the terms that are indexed."""
        return [*query_terms(input), *(character for run in RUN.findall(input) for character in run)]


def query_terms(query: str) -> list[str]:
    """Split a query into the terms that a page must have: what `js_splitter_code` does in the browser."""
    return WORD.findall(RUN.sub(lambda run: f" {' '.join(pairs(run.group()))} ", query))


def pairs(run: str) -> list[str]:
    """Neighbouring characters, two at a time: of ``abc``, ``ab`` and ``bc``; one that is alone, as it is."""
    return [first + second for first, second in pairwise(run)] or [run]


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_search_language(SearchEnglishAndChinese)
    return {"version": "1", "parallel_read_safe": True}
