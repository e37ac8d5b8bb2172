"""posenc_key_tokens: loss of the tokens that long context helps, after ever longer context (LongPPL's key tokens).

Most tokens of a text are predicted from the last few before them, and their loss hides what a scheme does to the rest.
Which tokens count is chosen once by the unpatched model at its trained length, see `hf_posenc.eval.lm.key_tokens`.

Fang et al. 2024, arXiv:2410.23771. Theirs is an evaluator of 8B parameters on 32k tokens; numbers are comparable with
each other on one model and text, not with the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from lm_eval.api.metrics import mean
from pydantic import Field

from hf_posenc.eval.tasks.base import Doc, Metric
from hf_posenc.eval.tasks.perplexity import SpanTask
from hf_posenc.eval.tasks.sweep import Count, TaskOptions
from hf_posenc.eval.texts.windows import check_room

ITSELF = "the unpatched model"


def per_token(pairs: Sequence[tuple[float, int]]) -> float:
    """Loss of all key tokens over their number; 0 where there is none."""
    return sum(loss for loss, _ in pairs) / max(1, sum(count for _, count in pairs))


def long_perplexity(pairs: Sequence[tuple[float, int]]) -> float:
    """Exponential of `per_token`."""
    return math.exp(per_token(pairs))


class KeyTokensOptions(TaskOptions):
    """How key tokens are chosen: tokens of short context, the paper's thresholds in nats, and the model."""

    short: Count = 16
    gain: Annotated[float, Field(ge=-1e3, le=1e3)] = 2.0
    likelihood: Annotated[float, Field(ge=-1e3, le=0)] = -2.0
    evaluator: str = ITSELF


class KeyTokensTask(SpanTask):
    """Loss of key tokens: per document, per token, and LongPPL.

    Options: ``short``, ``gain``, ``likelihood``, ``evaluator``.

    ``key_nats`` is a document's summed loss, so that documents without key tokens, 0, can be paired as well; ``nll``
    and ``long_ppl`` divide by the number of all key tokens.
    """

    request_type = "key_token_scores"
    Options = KeyTokensOptions
    metrics: ClassVar[dict[str, Metric]] = {
        "key_nats": (mean, False), "nll": (per_token, False), "long_ppl": (long_perplexity, False), "keys": (mean, True)
    }  # fmt: skip

    def documents(self) -> list[Doc]:
        """Windows of the text."""
        check_room(self.sweep.lengths, self.sweep.scored + len(self.front))
        return super().documents()

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """The text and how tokens are chosen, at every length."""
        options, scored = self.options, self.sweep.scored
        evaluator = "" if options.evaluator == ITSELF else options.evaluator
        choice = (options.short, options.gain, options.likelihood, evaluator)
        return [(doc["name"], self.front, doc["ids"], length, scored, *choice) for length in self.sweep.lengths]

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, Any]]:
        """Summed loss and number of key tokens, at every length."""
        return [
            {"key_nats": -score, "keys": float(count), "nll": (-score, count), "long_ppl": (-score, count)}
            for score, count in results
        ]
