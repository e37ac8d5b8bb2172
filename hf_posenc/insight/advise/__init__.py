"""Recommend schemes, options and their cost for a model and a target context length, from its configuration alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hf_posenc.insight.advise.recommend import advise as advise
    from hf_posenc.insight.advise.report import Advice as Advice
    from hf_posenc.insight.advise.report import Recommendation as Recommendation

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "hf_posenc.insight.advise.recommend": ("advise",),
        "hf_posenc.insight.advise.report": ("Advice", "Recommendation"),
    },
)
