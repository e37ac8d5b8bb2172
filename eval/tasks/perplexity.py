"""lm-eval tasks that score spans of tokens: loss by position, and in a sliding window.

posenc_token_nll      ▏0 … 256▏… 512▏… … 1024▏          the loss of each stretch of a text after all of it before
posenc_sliding_ppl        [… context … ▏stride]         every token once, with length − stride … length tokens before it

Both use token ids, so that no text is re-tokenised, and a request type of our own. The language model chooses the
number of forward passes, see `hf_posenc.eval.lm.spans`. A window starts with the tokenizer's own begin token, if it has
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.errors import BadComparison
from hf_posenc.eval.errors import LengthTooShort
from hf_posenc.eval.lm.spans import Span, front_of
from hf_posenc.eval.tasks.base import LOSS, Doc, LengthSweep, loss_and_perplexity, perplexity
from hf_posenc.eval.tasks.sweep import Count, TaskOptions
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


class SlidingTask(SpanTask):
    """Loss of a stretch of text under a window that moves on by a stride; every token is scored once.

    The stretch comes after ``longest`` tokens, so that every length scores the same tokens with a full window. With
    ``from_start`` it is the beginning of the text, and the first window scores all its tokens, as in
    Press, Smith, Lewis 2021, arXiv:2108.12409, appendix B. By default a ``stretch`` is four strides.
    """

    Options = TaskOptions.plus(stride=(Count, 256), stretch=(Count, 1), from_start=(bool, False))

    def defaults(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """A stretch of four strides."""
        return {"stretch": 4 * self.Options.of(metadata).model_dump()["stride"]}

    @property
    def target(self) -> tuple[int, int]:
        """First scored token, and end."""
        earliest = 0 if self.front else 1
        first = earliest if self.options.from_start else self.sweep.longest - self.options.stride
        return first, first + self.options.stretch

    def size(self) -> int:
        """Tokens of a document that any length uses."""
        return self.target[1]

    def spans(self) -> list[list[Span]]:
        """The windows of each length."""
        return [slid(*self.target, length - len(self.front), self.options.stride) for length in self.sweep.lengths]


def slid(first: int, last: int, length: int, stride: int) -> list[Span]:
    """Windows of at most ``length`` tokens that score the tokens from ``first`` to ``last`` once each, in order."""
    if length <= stride:
        raise LengthTooShort(
            f"A window of {length} tokens has no room for context before {stride} scored ones. "
            "Ask for longer lengths, or a shorter stride."
        )
    found = []
    scored, end = first, min(last, max(first + stride, length))
    while scored < last:
        found.append((max(0, end - length), scored, end))
        scored, end = end, min(last, end + stride)
    return found
