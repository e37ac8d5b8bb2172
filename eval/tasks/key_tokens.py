"""posenc_key_tokens: loss of the tokens that long context helps, after ever longer context (LongPPL's key tokens).

Most tokens of a text are predicted from the last few before them, and their loss hides what a scheme does to the rest.
Which tokens count is chosen once by the unpatched model at its trained length, see `hf_posenc.eval.lm.key_tokens`.

Fang et al. 2024, arXiv:2410.23771. Theirs is an evaluator of 8B parameters on 32k tokens; numbers are comparable with
each other on one model and text, not with the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.eval.tasks.base import Doc, Metric
from hf_posenc.eval.tasks.perplexity import SpanTask
from hf_posenc.eval.tasks.sweep import metric_name
from hf_posenc.eval.tasks.task_options import TaskOptions
from hf_posenc.eval.texts.windows import check_room

SHORT, GAIN, LIKELIHOOD = 16, 2.0, -2.0
"""Default tokens of short context, and the paper's thresholds, nats."""


def per_token(pairs: Sequence[tuple[float, int]]) -> float:
    """Loss of all key tokens over their number; 0 where there is none."""
    return sum(loss for loss, _ in pairs) / max(1, sum(count for _, count in pairs))


def long_perplexity(pairs: Sequence[tuple[float, int]]) -> float:
    """Exponential of `per_token`."""
    return math.exp(per_token(pairs))


class KeyTokensTask(SpanTask):
    """Loss of key tokens: per document, per token, and LongPPL.

    Options: ``short``, ``gain``, ``likelihood``, ``evaluator``.

    ``key_nats`` is a document's summed loss, so that documents without key tokens, 0, can be paired as well; ``nll``
    and ``long_ppl`` divide by the number of all key tokens.
    """

    request_type = "key_token_scores"
    metrics: ClassVar[dict[str, Metric]] = {
        "key_nats": (mean, False), "nll": (per_token, False), "long_ppl": (long_perplexity, False), "keys": (mean, True)
    }  # fmt: skip

    def __init__(self, config: dict[str, Any]) -> None:
        self.options = TaskOptions(config["metadata"])
        self.choice = (
            self.options.whole("short", SHORT, most=2**31 - 1),
            self.options.number("gain", GAIN, -1e3, 1e3),
            self.options.number("likelihood", LIKELIHOOD, -1e3, 0.0),
            str(config["metadata"].get("evaluator") or ""),
        )
        self.options.used["evaluator"] = self.choice[-1] or "the unpatched model"
        super().__init__(config)
        self.config.metadata |= self.options.used

    def documents(self) -> list[Doc]:
        """Windows of the text."""
        check_room(self.sweep.lengths, self.sweep.scored + len(self.front))
        return super().documents()

    def size(self) -> int:
        """Tokens that fit the longest length, begin token included."""
        return self.sweep.longest - len(self.front)

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """The text and how tokens are chosen, at every length."""
        return [
            (doc["name"], self.front, doc["ids"], length, self.sweep.scored, *self.choice)
            for length in self.sweep.lengths
        ]

    def scores(self, doc: Doc, results: Sequence[Any]) -> dict[str, Any]:
        """Summed loss and number of key tokens, at every length."""
        values: dict[str, Any] = {}
        for length, (score, count) in zip(self.sweep.lengths, results, strict=True):
            values[metric_name("key_nats", length)] = -score
            values[metric_name("keys", length)] = float(count)
            values |= {metric_name(metric, length): (-score, count) for metric in ("nll", "long_ppl")}
        return values
