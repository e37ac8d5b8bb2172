"""posenc_qa_file: questions of local files, with distractor documents up to the length."""

from __future__ import annotations

import random
import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.errors import UnreadableDocuments
from hf_posenc.eval.errors import LengthTooShort
from hf_posenc.eval.tasks.base import Doc, Metric
from hf_posenc.eval.tasks.retrieval import FORCED, Marks, RetrievalTask, found
from hf_posenc.eval.texts.local_records import local_records
from hf_posenc.eval.texts.question_files import EXAMPLE, DocumentQuestion, FileQuestion, questions_of

ARTICLES = re.compile(r"\b(a|an|the)\b")


class FileQuestionsTask(RetrievalTask):
    """A question of a file, its documents among others. Options: ``data``, ``question_tokens``.

    Forced, the first answer is scored; generated, ``match`` is whether any accepted answer occurs in the text, and
    ``f1`` SQuAD's overlap of words with the nearest.
    """

    reads_text = False
    generated: ClassVar[dict[str, Metric]] = {"match": (mean, True), "f1": (mean, True)}
    metrics: ClassVar[dict[str, Metric]] = FORCED | generated

    @cached_property
    def questions(self) -> list[FileQuestion]:
        """The questions of all files."""
        records = local_records(self.options.paths("data"), self.name, EXAMPLE)
        found = [question for place, record in records for question in questions_of(record, place)]
        if not found:
            raise UnreadableDocuments("There is no question with an answer in the data. Pass another file.")
        return found

    @cached_property
    def pool(self) -> tuple[str, ...]:
        """Every document of the files, once."""
        return tuple(dict.fromkeys(text for asked in self.questions for text in (*asked.needed, *asked.beside)))

    def documents(self) -> list[Doc]:
        """Questions in random order whose documents leave room at the shortest length, ``keys`` of them.

        Raises:
            LengthTooShort: there is none.
        """
        order = random.Random(f"{self.name}-{self.sweep.seed}").sample(range(len(self.questions)), len(self.questions))
        most = self.options.whole("question_tokens", self.sweep.lengths[0], most=2**31 - 1)
        documents: list[Doc] = []
        shortest, tried = 2**31, 0
        for number in order:
            if len(documents) == self.sweep.keys:
                break
            tried, asked = tried + 1, self.questions[number]
            bare = DocumentQuestion("", 0.0, asked, ()).prompt(0)
            tokens = self.count(bare) + 2 * max(self.count(f" {answer}") for answer in asked.answers)
            shortest = min(shortest, tokens)
            if tokens <= most:
                documents.append(self.document(f"{self.name}-{self.sweep.seed}-{number}") | {"question": number})
        if not documents:
            raise LengthTooShort(
                f"None of {len(order)} questions fits {most} tokens with its documents; the shortest takes {shortest}. "
                "Ask for longer lengths."
            )
        used = {"read": len(order), "tried": tried, "used": len(documents)}
        self.config.metadata |= {"questions": used}
        return documents

    def exercise(self, seed: str, depth: float) -> DocumentQuestion:
        """The question whose number ends the seed, its first document at ``depth``."""
        found = DocumentQuestion(seed, depth, self.questions[int(seed.rpartition("-")[2])], self.pool)
        if found.alone:
            raise UnreadableDocuments(
                "The data has no document besides those of one question, and nothing to make a prompt longer with. "
                "Add records."
            )
        return found

    def marks(self, doc: Doc, results: Sequence[Any]) -> Marks:
        """As for other tasks; a generated text is compared with every accepted answer."""
        if not self.generates:
            return super().marks(doc, results)
        accepted, text = self.questions[doc["question"]].answers, results[0].strip().partition("\n")[0]
        return {
            "match": [float(any(found(text, accepted)))],
            "f1": [max(word_overlap(text, answer) for answer in accepted)],
        }


def word_overlap(text: str, answer: str) -> float:
    """SQuAD's F1: harmonic mean of the shares of words that two texts have in common."""
    ours, theirs = words(text), words(answer)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def words(text: str) -> list[str]:
    """Words in lower case, without articles and punctuation, as SQuAD compares them."""
    bare = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return ARTICLES.sub(" ", bare).split()
