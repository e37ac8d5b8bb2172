"""Re-ranking: put the documents about a subject in order, the most relevant first.

    "Document 482: The ferry brought mesodar. Old mesodar was sold, and new mesodar too."        relevance 3
    "Which documents are about mesodar? The most relevant first: Document 482, Document 117, …"

Relevance of a generated document is how often it names the subject, 1 … ``relevant``, each once; other documents are
about other subjects. The numbers of documents are drawn, not counted, so that the answer is the same at every length.
Records of local files: ``{"query": "…", "documents": [{"text": "…", "relevance": 2}, …]}``.

Yen et al. 2024, "HELMET", arXiv:2410.02694, section 2, passage re-ranking; there with MS MARCO and NDCG@10.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2

from hf_posenc.errors import UnreadableDocuments, shown
from hf_posenc.eval.texts.haystack import depths, insert_needles
from hf_posenc.eval.texts.local_records import Record, texts_of
from hf_posenc.eval.texts.vocabulary import Supply, coined, sentence

INTRO = "Each document has a number.\n"
DOCUMENT = "Document {number}: {text}"
NAMES = "It is about {word}."
QUESTION = (
    "\nWhich documents are about this: {query}? Give their numbers, the most relevant document first. The numbers are"
)
EXAMPLE = '{"query": "…", "documents": [{"text": "…", "relevance": 2}]}'
FIRST_NUMBER, LAST_NUMBER = 100, 9999


@dataclass(frozen=True)
class Query:
    """A query with graded documents, those of grade 0 among them."""

    query: str
    graded: tuple[tuple[str, float], ...]

    @classmethod
    def of_record(cls, record: Record, place: str) -> Query:
        """The query of a record.

        Raises:
            UnreadableDocuments: it has none, or no relevant document.
        """
        (query, *_), documents = texts_of(record, ("query", "question"), place), record.get("documents")
        graded: list[tuple[str, float]] = []
        for document in documents if isinstance(documents, (list, tuple)) else ():
            grade = document.get("relevance", 0) if isinstance(document, Mapping) else None
            if not isinstance(grade, (int, float)) or not isinstance(document.get("text"), str):
                raise UnreadableDocuments(f"A document in {place} is {shown(document)}. Write {EXAMPLE}.")
            graded.append((document["text"], float(grade)))
        if not any(grade > 0 for _, grade in graded):
            raise UnreadableDocuments(f"No document in {place} has a relevance above 0. Write {EXAMPLE}.")
        return cls(query.strip(), tuple(graded))


def generated(seed: str, relevant: int) -> Query:
    """A query about a coined subject, and documents that name it 1 … ``relevant`` times."""
    rng = random.Random(f"{seed}-query")
    subject = coined(rng)
    graded = [(about(subject, grade, relevant, rng), float(grade)) for grade in range(relevant, 0, -1)]
    return Query(subject, tuple(graded))


def about(word: str, times: int, sentences: int, rng: random.Random) -> str:
    """A document of sentences, ``times`` of them naming a word."""
    parts = [NAMES.format(word=word)] * times + [sentence(rng) for _ in range(sentences - times)]
    return " ".join(rng.sample(parts, len(parts)))


class Ranking:
    """One query, its relevant documents, and any number of others.

    Args:
        seed: of numbers, order and depths.
        depth: of the most relevant document.
        query: with its documents; those of grade 0 are the first of the others.
        pool: documents of other queries, which follow those, again and again; none for generated ones.
        relevant: sentences of generated documents.
    """

    pinned = 0

    def __init__(self, seed: str, depth: float, query: Query, pool: Sequence[str] = (), relevant: int = 3) -> None:
        rng = random.Random(seed)
        self.query = query
        ordered = sorted((one for one in query.graded if one[1] > 0), key=lambda one: -one[1])
        self.numbers = Supply(lambda: str(rng.randint(FIRST_NUMBER, LAST_NUMBER)))
        self.answers = tuple(self.numbers.first(len(ordered)))
        self.grades: dict[str, float] = dict(zip(self.answers, (grade for _, grade in ordered), strict=True))
        self.needed = list(zip([depth, *depths(rng, len(ordered) - 1)], (text for text, _ in ordered), strict=True))
        filling, own = random.Random(f"{seed}-others"), [text for text, grade in query.graded if grade <= 0]
        fixed, numbers = [*own, *filling.sample(pool, len(pool))], iter(range(2**62))

        def other() -> str:
            return fixed[next(numbers) % len(fixed)] if fixed else about(coined(filling), relevant, relevant, filling)

        self.others = Supply(other, distinct=False)

    def prompt(self, units: int) -> str:
        """The documents with ``units`` others, the question, and the opening of its answer."""
        numbers = self.numbers.first(len(self.answers) + units)
        placed = [
            (depth, DOCUMENT.format(number=number, text=text))
            for number, (depth, text) in zip(self.answers, self.needed, strict=True)
        ]
        others = zip(numbers[len(self.answers) :], self.others.first(units), strict=True)
        filler = [DOCUMENT.format(number=number, text=text) for number, text in others]
        documents = "\n".join(insert_needles(placed, filler))
        return f"{INTRO}{documents}{QUESTION.format(query=self.query.query)}"


def ndcg(ranked: Sequence[str], grades: Mapping[str, float], most: int = 10) -> float:
    """Normalised discounted cumulative gain of the first ``most`` numbers: Σ grade / log₂(rank + 1), of the best."""

    def gain(some: Sequence[float]) -> float:
        return sum(grade / log2(rank + 1) for rank, grade in enumerate(some[:most], 1))

    return gain([grades.get(number, 0.0) for number in ranked]) / gain(sorted(grades.values(), reverse=True))
