"""Search the zero-shot scheme and options that extend a model best, within a time: ``hf-posenc search``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hf_posenc.insight.search.result import SearchResult as SearchResult
    from hf_posenc.insight.search.run import search as search

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "hf_posenc.insight.search.result": ("SearchResult",),
        "hf_posenc.insight.search.run": ("search",),
    },
)
