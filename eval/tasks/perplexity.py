"""lm-eval tasks on token ids: loss by position, and on the windows of a fine-tuning run.

posenc_token_nll      ▏0 … 256▏… 512▏… … 1024▏          the loss of each segment of a text, after all text before it

No text is tokenised twice. The requests have a type of their own; the language model answers all requests of one text
in one forward pass if this is exact, see `hf_posenc.eval.lm.scorer`. A window starts with the tokenizer's begin token,
if it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.errors import BadComparison
from hf_posenc.eval.errors import LengthTooShort
from hf_posenc.eval.lm.prefixes import frame_of
from hf_posenc.eval.tasks.base import LOSS, Doc, PerplexityTask, loss_and_perplexity, perplexity
from hf_posenc.eval.texts.held_out import HeldOutText
from hf_posenc.eval.texts.windows import check_room


class TokenTask(PerplexityTask):
    """Loss of the last tokens of rows of token ids, with one request for each length."""

    request_type = "suffix_scores"

    def documents(self) -> list[Doc]:
        """Windows of tokens from all parts of the text."""
        size = self.size()
        return [
            {**source.named(end - size), "ids": list(source.ids[end - size : end]), "target": ""}
            for source, end in self.own_windows(size)
        ]

    def size(self) -> int:
        """Tokens of a window: the longest length without the special tokens before it."""
        return self.sweep.longest - len(self.front)

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """At each length, as many tokens as fit, and the number of scored ones at their end."""
        front, scored = self.front, self.sweep.scored
        return [(doc["name"], [*front, *doc["ids"][len(front) - length :]], scored) for length in self.sweep.lengths]

    @property
    def front(self) -> list[int]:
        """Special tokens before every text."""
        return frame_of(self.tokenizer)[0]


class HeldOutTask(TokenTask):
    """Loss on the held-out windows of a fine-tuning run: gives the run's last losses for the model that it saved."""

    front: ClassVar[list[int]] = []  # as in training, where rows start anywhere in the text

    def documents(self) -> list[Doc]:
        """The windows of the run."""
        from hf_posenc.training.dataset import HeldOutWindows

        sweep, text = self.sweep, self.text
        if not isinstance(text, HeldOutText):
            raise BadComparison(
                f"{self.name} measures the held-out text of a fine-tuning run. Pass the folder of a run."
            )
        check_room(sweep.lengths, sweep.scored)
        windows = HeldOutWindows(
            text.tokens, sweep.longest, longest=sweep.longest, count=sweep.samples, scored=sweep.scored
        )
        return [
            {"name": f"token {end}", "ids": windows[number]["input_ids"].tolist(), "target": ""}
            for number, end in enumerate(windows.ends)
        ]


class TokenLossTask(TokenTask):
    """Loss by position.

    ``nll_L512`` is the loss of the segment between the next shorter length and 512 tokens, ``prefix_nll_L512`` that of
    all 512 tokens.
    """

    metrics = LOSS | {"prefix_nll": (mean, False), "prefix_ppl": (perplexity, False)}

    def segments(self) -> list[tuple[int, int]]:
        """First token and end of the segment of each length; a token without a token before it is not scored."""
        ends = [length - len(self.front) for length in self.sweep.lengths]
        first = 0 if self.front else 1
        if ends[0] <= first:
            raise LengthTooShort(
                f"A length of {self.sweep.lengths[0]} tokens has nothing to score after the first. Ask for longer ones."
            )
        return list(pairwise([first, *ends]))

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """The segment of each length after all tokens before it."""
        return [(doc["name"], [*self.front, *doc["ids"][:end]], end - begin) for begin, end in self.segments()]

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Loss in nats/token of each segment, and of all tokens up to its end."""
        scores, total, segments = [], 0.0, self.segments()
        for (score, _), (begin, end) in zip(results, segments, strict=True):
            total -= score
            prefix = total / (end - segments[0][0])
            losses = loss_and_perplexity(-score / (end - begin))
            scores.append(losses | {"prefix_nll": prefix, "prefix_ppl": prefix})
        return scores
