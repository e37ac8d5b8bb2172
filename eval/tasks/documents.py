"""posenc_docs: loss of the same tokens of the user's own documents, with increasing context before them.

    document   … … … … … … … … … context ▏ target … … …

Every document that is long enough for the longest length is used, so that all lengths are measured on the same ones.
Each has the same number of windows, however long it is, at random places of equal parts of it; `posenc_ppl` shares them
out by length. With ``from_start`` each document has one, its first ``longest`` tokens, as in papers that cut documents
to a length. The numbers of windows and of short and empty documents are in the task's metadata in the results.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.eval.errors import TextTooShort
from hf_posenc.eval.lm.spans import Span
from hf_posenc.eval.tasks.base import Doc, Metric, perplexity
from hf_posenc.eval.tasks.perplexity import SpanTask
from hf_posenc.eval.tasks.sweep import metric_name
from hf_posenc.eval.texts.documents import documents
from hf_posenc.eval.texts.measured_text import measured_text
from hf_posenc.eval.texts.sampling import distinct, placed_in_each
from hf_posenc.eval.texts.windows import Tokenized, check_room
from hf_posenc.patching.preconditions.weights import check_known
from hf_posenc.texts import Document, rendered

ENOUGH = 64
"""Characters per token, more than any language needs."""
MARGIN = 64
"""Tokens kept after the last scored one: where a text is cut off, its last tokens may differ."""

log = logging.getLogger(__name__)


class DocsTask(SpanTask):
    """Loss of the last tokens of windows of documents, at every length."""

    reads: ClassVar[frozenset[str]] = frozenset({"docs", "from_start"})
    metrics: ClassVar[dict[str, Metric]] = {"nll": (mean, False), "ppl": (perplexity, False)}

    def documents(self) -> list[Doc]:
        """``samples`` windows of the first documents that are long enough, at least one of each.

        Raises:
            TextTooShort: none is.
        """
        check_room(self.sweep.lengths, self.sweep.scored + len(self.front))
        found: list[Tokenized] = []
        empty = short = seen = 0
        longest = 0
        for document in self.own_documents():
            if len(found) == self.sweep.samples:
                break
            ids = self.tokens(rendered(document, self.tokenizer))
            longest = max(longest, len(ids))
            seen, empty, short = seen + 1, empty + (not ids), short + (0 < len(ids) < self.size())
            if len(ids) >= self.size():
                found.append(Tokenized("", tuple(ids), (), document.name))
        if not found:
            raise TextTooShort(
                f"None of {seen} documents has the {self.size()} tokens that length {self.sweep.longest} needs; "
                f"the longest has {longest}, and {empty} are empty. Give longer documents or ask for shorter lengths."
            )
        if empty or short:
            log.warning("Of %d documents %d are empty and %d too short; they are left out.", seen, empty, short)
        windows = self.windows(found)
        counts = {"read": seen, "used": len(found), "short": short, "empty": empty, "windows": len(windows)}
        self.config.metadata |= {"documents": counts}
        return windows

    def windows(self, sources: Sequence[Tokenized]) -> list[Doc]:
        """The windows of all documents; as many of each, or one more of the first ones."""
        each, more = divmod(self.sweep.samples, len(sources))
        found: list[Doc] = []
        for number, (source, name) in enumerate(zip(sources, distinct([s.name for s in sources]), strict=True)):
            ends = [self.size()]
            if not self.sweep.from_start:
                ends = placed_in_each(source, each + (number < more), self.size(), f"{self.sweep.seed}-{number}")
            for end in ends:
                ids = list(source.ids[end - self.size() : end])
                place = name if self.sweep.from_start else f"{name}, token {end - self.size()}"
                found.append({"name": place, "cluster": name, "ids": ids, "target": ""})
        return found

    def own_documents(self) -> Iterable[Document]:
        """The documents that ``docs`` names, else those of the text."""
        if self.sweep.docs or self.sweep.text is None:
            return documents(self.sweep.docs, self.sweep.field, self.sweep.separator)
        return measured_text(self.sweep.text, field=self.sweep.field, separator=self.sweep.separator).documents

    def tokens(self, text: str) -> list[int]:
        """Tokens of a text; of its beginning, at least `size` of them if it has as many, where no more are used."""
        for share in (ENOUGH * self.size(), len(text)) if self.sweep.from_start else (len(text),):
            start = text[:share]
            ids = self.tokenizer(start, add_special_tokens=False, verbose=False)["input_ids"]
            if len(start) == len(text) or len(ids) >= self.size() + MARGIN:
                break
        check_known(self.tokenizer, ids)
        return list(ids)

    def size(self) -> int:
        """Tokens used of each document."""
        return self.sweep.longest - len(self.front)

    def spans(self) -> list[list[Span]]:
        """The target after as much context as each length has room for."""
        size, first = self.size(), self.size() - self.sweep.scored
        return [[(size - length + len(self.front), first, size)] for length in self.sweep.lengths]

    def scores(self, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        """Loss in nats/token."""
        values: dict[str, float] = {}
        for length, ((score, _),) in self.by_length(results).items():
            loss = -score / self.sweep.scored
            values |= {metric_name("nll", length): loss, metric_name("ppl", length): loss}
        return values
