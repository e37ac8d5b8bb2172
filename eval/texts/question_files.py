"""Question answering over documents of local files, with other documents of the same files as distractors.

    SQuAD       {"data": [{"paragraphs": [{"context", "qas": [{"question", "answers": [{"text"}]}]}]}]}
    HotpotQA    [{"question", "answer", "context": [[title, [sentence, …]], …], "supporting_facts": [[title, n], …]}]
    plain       {"context": "…", "question": "…", "answers": ["…"]}          one record a line

``depth`` is that of the first document that the question needs; those of a second one, as in HotpotQA, are random.

Rajpurkar et al. 2016, arXiv:1606.05250; Yang et al. 2018, arXiv:1809.09600; as tasks of any length: Hsieh et al. 2024,
"RULER", arXiv:2404.06654, section 3.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_posenc.errors import UnreadableDocuments
from hf_posenc.eval.texts.haystack import depths, insert_needles
from hf_posenc.eval.texts.local_records import Record, texts_of
from hf_posenc.eval.texts.vocabulary import Supply

INTRO = "Answer the question from these documents, in a few words.\n\n"
DOCUMENT = "Document {number}:\n{text}"
QUESTION = "\n\nQuestion: {question}\nAnswer:"
EXAMPLE = '{"context": "…", "question": "…", "answers": ["…"]}'


@dataclass(frozen=True)
class FileQuestion:
    """A question of a file.

    Attributes:
        question: as it is asked.
        answers: accepted ones; the first is scored.
        needed: documents that hold the answer.
        beside: its own distractors.
    """

    question: str
    answers: tuple[str, ...]
    needed: tuple[str, ...]
    beside: tuple[str, ...] = ()


def questions_of(record: Record, place: str) -> Iterator[FileQuestion]:
    """The questions of a record, in any of the three formats.

    Raises:
        UnreadableDocuments: it has none of them.
    """
    if isinstance(record.get("data"), list):
        for article in record["data"]:
            for paragraph in article["paragraphs"]:
                yield from squad_questions(paragraph, place)
    elif isinstance(record.get("context"), (list, Mapping)):
        yield hotpot_question(record, place)
    else:
        (context, *_), (question, *_) = texts_of(record, ("context",), place), texts_of(record, ("question",), place)
        yield FileQuestion(question.strip(), texts_of(record, ("answers", "answer"), place), (context,))


def squad_questions(paragraph: Mapping[str, Any], place: str) -> Iterator[FileQuestion]:
    """The questions of one of SQuAD's paragraphs; those without an answer in it are left out."""
    for asked in paragraph["qas"]:
        if not asked.get("is_impossible") and asked.get("answers"):
            answers = tuple(dict.fromkeys(texts_of(asked, ("answers",), place)))
            yield FileQuestion(asked["question"].strip(), answers, (paragraph["context"],))


def hotpot_question(record: Record, place: str) -> FileQuestion:
    """A question of HotpotQA; its supporting documents are needed, the others are beside them."""
    context, facts = record["context"], record.get("supporting_facts") or []
    if isinstance(context, Mapping):  # as columns, in the Hub's copy
        context = list(zip(context["title"], context["sentences"], strict=True))
        facts = [[title] for title in facts.get("title", [])] if isinstance(facts, Mapping) else facts
    supporting = {fact[0] for fact in facts}
    texts = {title: f"{title}\n{''.join(sentences).strip()}" for title, sentences in context}
    needed = tuple(text for title, text in texts.items() if title in supporting)
    if not needed:
        raise UnreadableDocuments(f"No document supports the question in {place}. Add supporting_facts.")
    beside = tuple(text for title, text in texts.items() if title not in supporting)
    (question, *_) = texts_of(record, ("question",), place)
    return FileQuestion(question.strip(), texts_of(record, ("answer", "answers"), place), needed, beside)


class DocumentQuestion:
    """One question, among any number of documents.

    Args:
        seed: of order and depths.
        depth: of the first needed document among the others.
        asked: the question.
        pool: documents of all questions; those of other questions follow its own distractors, again and again.
    """

    pinned = 0

    def __init__(self, seed: str, depth: float, asked: FileQuestion, pool: Sequence[str]) -> None:
        rng = random.Random(seed)
        self.asked, self.answers = asked, asked.answers[:1]
        self.needed = list(zip([depth, *depths(rng, len(asked.needed) - 1)], asked.needed, strict=True))
        own = {*asked.needed, *asked.beside}
        others = [text for text in pool if text not in own]
        order = [*rng.sample(asked.beside, len(asked.beside)), *rng.sample(others, len(others))]
        numbers = iter(range(2**62))
        self.others = Supply(lambda: order[next(numbers) % len(order)], distinct=False)
        self.alone = not order

    def prompt(self, units: int) -> str:
        """The needed documents among ``units`` others, the question, and the opening of its answer."""
        texts = insert_needles(self.needed, [] if self.alone else self.others.first(units))
        documents = "\n\n".join(DOCUMENT.format(number=number, text=text) for number, text in enumerate(texts, 1))
        return f"{INTRO}{documents}{QUESTION.format(question=self.asked.question)}"
