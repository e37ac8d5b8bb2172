"""lm-eval tasks that score spans of tokens: loss by position, and on the windows of a fine-tuning run.

posenc_token_nll      ▏0 … 256▏… 512▏… … 1024▏          the loss of each stretch of a text after all of it before

Both use token ids, so that no text is re-tokenised, and a request type of our own. The language model chooses the
number of forward passes, see `hf_posenc.eval.lm.spans`. A window starts with the tokenizer's own begin token, if it has
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.errors import BadComparison
from hf_posenc.eval.errors import LengthTooShort
from hf_posenc.eval.lm.spans import Span, front_of
from hf_posenc.eval.tasks.base import LOSS, Doc, LengthSweep, loss_and_perplexity, perplexity
from hf_posenc.eval.texts.held_out import HeldOutText
from hf_posenc.eval.texts.windows import check_room


class SpanTask(LengthSweep):
    """A task whose documents are token ids and whose requests are spans of them, one or more per length."""

    request_type = "span_scores"
    metrics = LOSS

    def documents(self) -> list[Doc]:
        """Stretches of tokens from all parts of the text."""
        size = self.size()
        return [
            {**source.named(end - size), "ids": list(source.ids[end - size : end]), "target": ""}
            for source, end in self.own_windows(size)
        ]

    def size(self) -> int:
        """Tokens of a document: as many as fit the longest length, begin token included."""
        return self.sweep.longest - len(self.front)

    def spans(self) -> list[list[Span]]:
        """The spans to score, for each length; the same for every document."""
        raise NotImplementedError

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """One request per document, so that one forward pass can score all lengths."""
        every = [span for spans in self.spans() for span in spans]
        return [(doc["name"], self.front, doc["ids"], every)]

    @property
    def front(self) -> list[int]:
        """Special tokens before every text."""
        return front_of(self.tokenizer)

    def losses(self, results: Sequence[Any]) -> list[list[float]]:
        """The loss of every span of a document, for each length; nats."""
        answers = iter(results[0])
        return [[-next(answers)[0] for _ in spans] for spans in self.spans()]

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Loss of all tokens of the spans of a length, nats/token."""
        sizes = [sum(end - first for _, first, end in spans) for spans in self.spans()]
        return [
            loss_and_perplexity(sum(losses) / size) for losses, size in zip(self.losses(results), sizes, strict=True)
        ]


class HeldOutTask(SpanTask):
    """Loss on the windows that a fine-tuning run measured: its last held-out losses, on the model that it wrote."""

    front: ClassVar[list[int]] = []  # as in training, where rows of tokens begin anywhere

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

    def spans(self) -> list[list[Span]]:
        """The last tokens, after the context of each length."""
        end = self.sweep.longest
        return [[(end - length, end - self.sweep.scored, end)] for length in self.sweep.lengths]


class TokenLossTask(SpanTask):
    """Loss by position: at length L of the tokens between the length before and L, and of all tokens up to L.

    ``nll_L512`` is that of the stretch that ends there, ``prefix_nll_L512`` that of a text of 512 tokens as a whole.
    """

    metrics = LOSS | {"prefix_nll": (mean, False), "prefix_ppl": (perplexity, False)}

    def spans(self) -> list[list[Span]]:
        """The last stretch of each length, and all of it; a token without any before it is not scored."""
        lengths = [length - len(self.front) for length in self.sweep.lengths]
        first = 0 if self.front else 1
        if lengths[0] <= first:
            raise LengthTooShort(
                f"A length of {self.sweep.lengths[0]} tokens has nothing to score after the first. Ask for longer ones."
            )
        return [
            [(0, max(before, first), end), (0, first, end)] for before, end in zip([0, *lengths], lengths, strict=False)
        ]

    def scores(self, doc: Doc, results: Sequence[Any]) -> list[dict[str, float]]:
        """Loss in nats/token."""
        found = []
        for losses, spans in zip(self.losses(results), self.spans(), strict=True):
            stretch, prefix = (loss / (end - first) for loss, (_, first, end) in zip(losses, spans, strict=True))
            found.append(loss_and_perplexity(stretch) | {"prefix_nll": prefix, "prefix_ppl": prefix})
        return found
