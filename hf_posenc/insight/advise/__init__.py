"""Recommend schemes, options and their cost for a model and a target context length, from its configuration alone."""

from hf_posenc.insight.advise.recommend import advise
from hf_posenc.insight.advise.recommendation import Recommendation
from hf_posenc.insight.advise.report import Advice

__all__ = ["Advice", "Recommendation", "advise"]
