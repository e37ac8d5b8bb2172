"""posenc_rerank: put the documents about a subject in order, the most relevant first.

    "Document 482: The ferry brought mesodar. Old mesodar was sold, and new mesodar too."        relevance 3
    "Which documents are about mesodar? The most relevant first: Document 482, Document 117, …"

Relevance of a generated document is how often it names the subject, 1 … ``relevant``, each once; other documents are
about other subjects. The numbers of documents are drawn, not counted, so that the answer is the same at every length.
Records of local files: ``{"query": "…", "documents": [{"text": "…", "relevance": 2}, …]}``.

Yen et al. 2024, "HELMET", arXiv:2410.02694, section 2, passage re-ranking; there with MS MARCO and NDCG@10.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import cycle
from math import log2
from typing import Annotated, Any, ClassVar

from annotated_types import Interval
from lm_eval.api.metrics import mean
from pydantic import AfterValidator, AliasChoices, Field

from hf_posenc.eval.tasks.base import Doc, Metric
from hf_posenc.eval.tasks.retrieval import FileOptions, Marks, Record, RetrievalTask, Text, local_records
from hf_posenc.eval.tasks.sweep import Few
from hf_posenc.eval.texts.haystack import Notes, Supply, coined, depths, sentence

INTRO = "Each document has a number.\n"
DOCUMENT = "Document {number}: {text}"
NAMES = "It is about {word}."
QUESTION = (
    "\nWhich documents are about this: {query}? Give their numbers, the most relevant document first. The numbers are"
)
FIRST_NUMBER, LAST_NUMBER = 100, 9999
NUMBER = re.compile(r"\d+")


class GradedDocument(Record):
    """A document, and how relevant it is."""

    text: str
    relevance: float = 0.0


def any_relevant(documents: tuple[GradedDocument, ...]) -> tuple[GradedDocument, ...]:
    """The same documents."""
    if not any(document.relevance > 0 for document in documents):
        raise ValueError("No document has a relevance above 0")
    return documents


class Query(Record):
    """A query with graded documents, those of grade 0 among them."""

    query: Text = Field(validation_alias=AliasChoices("query", "question"))
    documents: Annotated[tuple[GradedDocument, ...], AfterValidator(any_relevant)]


def generated(seed: str, relevant: int) -> Query:
    """A query about a coined subject, and documents that name it 1 … ``relevant`` times."""
    rng = random.Random(f"{seed}-query")
    subject = coined(rng)
    documents = [{"text": about(subject, n, relevant, rng), "relevance": n} for n in range(relevant, 0, -1)]
    return Query.model_validate({"query": subject, "documents": documents})


def about(word: str, times: int, sentences: int, rng: random.Random) -> str:
    """A document of sentences, ``times`` of them naming a word."""
    parts = [NAMES.format(word=word)] * times + [sentence(rng) for _ in range(sentences - times)]
    return " ".join(rng.sample(parts, len(parts)))


class Ranking(Notes):
    """One query, its relevant documents, and any number of others.

    Args:
        seed: of numbers, order and depths.
        depth: of the most relevant document.
        query: with its documents; those of grade 0 are the first of the others.
        pool: documents of other queries, which follow those, again and again; none for generated ones.
        relevant: sentences of generated documents.
    """

    intro = INTRO

    def __init__(self, seed: str, depth: float, query: Query, pool: Sequence[str] = (), relevant: int = 3) -> None:
        rng, filling = random.Random(seed), random.Random(f"{seed}-others")
        self.question = QUESTION.format(query=query.query.strip())
        ordered = sorted((one for one in query.documents if one.relevance > 0), key=lambda one: -one.relevance)
        numbers = Supply(lambda: str(rng.randint(FIRST_NUMBER, LAST_NUMBER)))
        self.answers = tuple(numbers.first(len(ordered)))
        self.grades = {number: one.relevance for number, one in zip(self.answers, ordered, strict=True)}
        found = [
            DOCUMENT.format(number=number, text=one.text) for number, one in zip(self.answers, ordered, strict=True)
        ]
        self.needles = list(zip([depth, *depths(rng, len(ordered) - 1)], found, strict=True))
        fixed = [one.text for one in query.documents if one.relevance <= 0] + filling.sample(pool, len(pool))
        again = cycle(fixed)

        def other() -> str:
            text = next(again) if fixed else about(coined(filling), relevant, relevant, filling)
            return DOCUMENT.format(number=next(numbers), text=text)

        self.filler = Supply(other, distinct=False)

    def written(self, texts: Sequence[str]) -> str:
        """The documents, one a line."""
        return "\n".join(texts)


class RankingTask(RetrievalTask):
    """The numbers of the relevant documents, of generated queries or those of local files.

    Forced, each number after the right ones before it; generated, NDCG@10 of the numbers in the text.
    """

    reads_text = False
    Options = FileOptions.plus(relevant=(Annotated[Few, Interval(le=10)], 3))
    generated: ClassVar[dict[str, Metric]] = {"ndcg": (mean, True)}

    @cached_property
    def queries(self) -> list[Query]:
        """The queries of local files; none without."""
        found = list(local_records(self.options.data, self.name, Query)) if self.options.data else []
        return random.Random(f"{self.name}-{self.sweep.seed}").sample(found, len(found))

    def documents(self) -> list[Doc]:
        """One query per document: ``keys`` generated ones, or as many of the file's, in random order."""
        count = min(self.sweep.keys, len(self.queries) or self.sweep.keys)
        return [self.document(f"{self.name}-{self.sweep.seed}-{sample}") for sample in range(count)]

    def document(self, seed: str) -> Doc:
        """One query at every length and depth, with the grades of its documents."""
        return super().document(seed) | {"grades": list(self.exercise(seed, 0.0).grades.values())}

    def exercise(self, seed: str, depth: float) -> Ranking:
        """A query, its most relevant document at ``depth``."""
        relevant = self.options.relevant
        if not self.queries:
            return Ranking(seed, depth, generated(seed, relevant), relevant=relevant)
        query = self.queries[int(seed.rpartition("-")[2])]
        pool = [one.text for other in self.queries if other is not query for one in other.documents]
        return Ranking(seed, depth, query, pool, relevant)

    def marks(self, doc: Doc, results: Sequence[Any]) -> Marks:
        """As for other tasks; of a generated text, NDCG@10 of its numbers."""
        if not self.generates:
            return super().marks(doc, results)
        ranked = list(dict.fromkeys(NUMBER.findall(results[0])))
        return {"ndcg": [ndcg(ranked, dict(zip(doc["answers"], doc["grades"], strict=True)))] * len(doc["answers"])}


def ndcg(ranked: Sequence[str], grades: Mapping[str, float], most: int = 10) -> float:
    """Normalised discounted cumulative gain of the first ``most`` numbers: Σ grade / log₂(rank + 1), of the best."""

    def gain(some: Sequence[float]) -> float:
        return sum(grade / log2(rank + 1) for rank, grade in enumerate(some[:most], 1))

    return gain([grades.get(number, 0.0) for number in ranked]) / gain(sorted(grades.values(), reverse=True))
