"""Documents with the queries that they answer: LongEmbed's two synthetic tasks, and novels.

    passkey     "The code of mesodar is 4831957." in five sentences, repeated      "Which code does mesodar have?"
    needle      the same in a novel                                                the same
    novels      a part of a novel without some of its sentences                    one of those sentences

Documents of the first two tasks differ only in the hidden sentences. The third task is the inverse cloze task: a query
is removed from its document, and the text around it remains. Each document has `QUERIES` queries, one in each quarter
at a random depth, which is the share of the text before the hidden place.

Zhu et al. 2024, "LongEmbed", arXiv:2404.12096, section 3; Lee, Chang, Toutanova 2019, "Latent Retrieval for Weakly
Supervised Open Domain Question Answering", arXiv:1906.00300, section 4.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hf_posenc.eval.texts.haystack import (
    FILLER,
    Supply,
    insert_needles,
    most_units,
    repeated,
    text_filler,
)
from hf_posenc.eval.texts.ruler import Niah

TASKS = ("passkey", "needle", "novels")
QUERIES = 4
"""Queries per document; several, because most of the time is spent on reading documents."""
QUERY = "Which code does {key} have?"
FEWEST_WORDS = 10
"""Fewest words of a query sentence; many shorter sentences occur in several places."""


@dataclass(frozen=True)
class Document:
    """A text, the queries that it answers, and the depths of their answers."""

    text: str
    queries: tuple[str, ...]
    depths: tuple[float, ...]


def documents(
    task: str, count: int, length: int, tokens: Callable[[str], int], novels: Sequence[Sequence[str]]
) -> list[Document]:
    """Make ``count`` documents of a task, each with as many sentences as fit ``length`` tokens.

    Args:
        task: one of `TASKS`.
        count: number of documents.
        length: most tokens of a document.
        tokens: counts the tokens of a text.
        novels: sentences of each novel.

    Raises:
        LengthTooShort: the hidden sentences alone are longer.
    """
    haystack = text_filler(novels[0], random.Random(task)) if task == "needle" else repeated(FILLER)

    def of_size(number: int, size: int) -> Document:
        seed = f"{task}-{number}"
        return part(seed, number, count, novels, size) if task == "novels" else needles(seed, haystack, size)

    def fitted(number: int) -> Document:
        return of_size(number, most_units(lambda size: tokens(of_size(number, size).text), length, "retrieval"))

    return [fitted(number) for number in range(count)]


def depths(seed: str) -> tuple[float, ...]:
    """One random depth in each of `QUERIES` equal parts."""
    rng = random.Random(seed)
    return tuple((number + rng.random()) / QUERIES for number in range(QUERIES))


def needles(seed: str, haystack: Supply, size: int) -> Document:
    """A document of ``size`` sentences of a haystack and the codes of coined words."""
    notes, places = Niah(seed, 0.0, queries=QUERIES), depths(seed)
    hidden = [(place, sentence) for place, (_, sentence) in zip(places, notes.needles, strict=True)]
    text = notes.written(insert_needles(hidden, haystack.first(size)))
    return Document(text, tuple(QUERY.format(key=key) for key in notes.keys), places)


def part(seed: str, number: int, count: int, novels: Sequence[Sequence[str]], size: int) -> Document:
    """A document of ``size`` sentences from a part of a novel, without the sentences that are its queries."""
    novel = novels[number % len(novels)]
    start = number // len(novels) * (len(novel) // -(-count // len(novels)))
    sentences, places = novel[start : start + size], depths(seed)
    long_enough = [index for index, sentence in enumerate(sentences) if len(sentence.split()) >= FEWEST_WORDS]
    hidden = [long_enough[int(place * len(long_enough))] for place in places if long_enough]
    visible = " ".join(sentence for index, sentence in enumerate(sentences) if index not in hidden)
    return Document(visible, tuple(sentences[index] for index in hidden), places)
