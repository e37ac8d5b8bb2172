"""Which scheme for which model and length, with what numbers, at what cost: read off a configuration, no weights."""

from __future__ import annotations

from hf_posenc.insight.advise.recommend import advise
from hf_posenc.insight.advise.report import Advice, Recommendation

__all__ = ["Advice", "Recommendation", "advise"]
