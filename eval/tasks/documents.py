"""posenc_docs: loss of the same tokens of the user's own documents, with increasing context before them.

    document   … … … … … … … … … context ▏ target … … …

Every document that is long enough for the longest length is used, so that all lengths are measured on the same ones.
Each document has the same number of windows, at random places of equal parts of it. (In `posenc_ppl`, longer documents
have more windows.) With ``from_start``, each document has one window, its first ``longest`` tokens, as in papers that
truncate documents. The results name the numbers of windows and of short and empty documents in the task's metadata.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hf_posenc.errors import UnreadableDocuments
from hf_posenc.eval.errors import TextTooShort
from hf_posenc.eval.tasks.base import Doc
from hf_posenc.eval.tasks.perplexity import TokenTask
from hf_posenc.eval.tasks.sweep import TaskOptions
from hf_posenc.eval.texts.sampling import Tokenized, distinct, placed_in_each
from hf_posenc.eval.texts.windows import check_room
from hf_posenc.patching.weights import check_known
from hf_posenc.texts import Document

log = logging.getLogger(__name__)


class DocsTask(TokenTask):
    """Loss of the last tokens of windows of documents, at every length."""

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
            ids = self.tokens(document)
            longest = max(longest, len(ids))
            seen += 1
            if len(ids) >= self.size():
                sources.append(Tokenized("", ids, (), document.name))
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

    def tokens(self, document: Document) -> tuple[int, ...]:
        """Tokens of a document."""
        ids = self.tokenizer(document.content, add_special_tokens=False, verbose=False)["input_ids"]
        check_known(self.tokenizer, ids)
        return tuple(ids)
