"""lm-eval tasks on token ids: loss by position, of the user's documents, and on the windows of a fine-tuning run.

posenc_token_nll      ▏0 … 256▏… 512▏… … 1024▏          the loss of each segment of a text, after all text before it
posenc_docs           … … … … … … … context ▏ target … … …          equally many windows of every document
posenc_held_out       … … … … … … … context ▏ target                 windows of the run, as in training

No text is tokenised twice. The requests have a type of their own; the language model answers all requests of one text
in one forward pass if this is exact, see `hf_posenc.eval.lm.scorer`. A window starts with the tokenizer's begin token,
if it has one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.errors import BadComparison, UnreadableDocuments
from hf_posenc.eval.errors import LengthTooShort, TextTooShort
from hf_posenc.eval.lm.prefixes import frame_of
from hf_posenc.eval.tasks.base import LOSS, Doc, PerplexityTask, loss_and_perplexity, perplexity
from hf_posenc.eval.tasks.sweep import TaskOptions
from hf_posenc.eval.texts.held_out import HeldOutText
from hf_posenc.eval.texts.sampling import Tokenized, distinct, placed_in_each
from hf_posenc.eval.texts.windows import check_room
from hf_posenc.patching.weights import check_known

log = logging.getLogger(__name__)


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


class DocsTask(TokenTask):
    """Loss of the same tokens of the user's own documents, with increasing context before them.

    Every document that is long enough for the longest length is used, so that all lengths are measured on the same
    ones. Each document has the same number of windows, at random places of equal parts of it. (In `PerplexityTask`,
    longer documents have more windows.) With ``from_start``, each document has one window, its first ``longest``
    tokens, as in papers that truncate documents. The results name the numbers of windows and of short and empty
    documents in the task's metadata.
    """

    Options = TaskOptions.plus(from_start=(bool, False))

    def documents(self) -> list[Doc]:
        """``samples`` windows of the first documents that are long enough, at least one of each."""
        check_room(self.sweep.lengths, self.sweep.scored + len(self.front))
        sources: list[Tokenized] = []
        empty = short = seen = 0
        longest = 0
        if self.sweep.text is None:
            raise UnreadableDocuments("The task has no documents. Pass --text notes.txt, or --metadata in lm-eval.")
        for document in self.text.documents:
            if len(sources) == self.sweep.samples:
                break
            ids = self.tokenizer(document.content, add_special_tokens=False, verbose=False)["input_ids"]
            check_known(self.tokenizer, ids)
            longest = max(longest, len(ids))
            seen += 1
            if len(ids) >= self.size():
                sources.append(Tokenized("", tuple(ids), (), document.name))
            elif ids:
                short += 1
            else:
                empty += 1
        if not sources:
            raise TextTooShort(
                f"None of {seen} documents has the {self.size()} tokens that length {self.sweep.longest} needs; "
                f"the longest has {longest}, and {empty} are empty. Give longer documents or ask for shorter lengths."
            )
        if empty or short:
            log.warning("Of %d documents %d are empty and %d too short; they are left out.", seen, empty, short)
        windows = self.windows(sources)
        counts = {"read": seen, "used": len(sources), "short": short, "empty": empty, "windows": len(windows)}
        self.config.metadata |= {"documents": counts}
        return windows

    def windows(self, sources: Sequence[Tokenized]) -> list[Doc]:
        """The windows of all documents: equally many of each, and one more of the first documents if needed."""
        each, more = divmod(self.sweep.samples, len(sources))
        windows: list[Doc] = []
        for number, (source, name) in enumerate(zip(sources, distinct([s.name for s in sources]), strict=True)):
            ends = [self.size()]
            if not self.options.from_start:
                ends = placed_in_each(source, each + (number < more), self.size(), f"{self.sweep.seed}-{number}")
            for end in ends:
                ids = list(source.ids[end - self.size() : end])
                place = name if self.options.from_start else f"{name}, token {end - self.size()}"
                windows.append({"name": place, "cluster": name, "ids": ids, "target": ""})
        return windows


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
