"""Search in English and Chinese on one site: Chinese text is indexed by single characters and pairs of neighbours.

Pairs need no dictionary, so terms that are in no dictionary, such as 旋转位置编码, are found too. The browser splits a
query in the same way, and finds the pages that contain every pair of the query.
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

    lang = "en+zh"  # language_name stays English, because Sphinx derives the name of the stemmer from it
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
    """Split a query into the terms that a page must contain, as `js_splitter_code` does in the browser."""
    return WORD.findall(RUN.sub(lambda run: f" {' '.join(pairs(run.group()))} ", query))


def pairs(run: str) -> list[str]:
    """Pairs of neighbouring characters: ``ab`` and ``bc`` for ``abc``; a single character is returned alone."""
    return [first + second for first, second in pairwise(run)] or [run]


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_search_language(SearchEnglishAndChinese)
    return {"version": "1", "parallel_read_safe": True}
