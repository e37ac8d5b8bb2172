"""Documents, each with the queries that it answers: LongEmbed's two synthetic tasks, and novels.

    passkey     "The code of mesodar is 4831957." in five sentences, repeated      "Which code does mesodar have?"
    needle      the same in a novel                                                the same
    novels      a piece of a novel without some of its sentences                   one of those sentences

Documents of the first two tasks differ in the hidden sentences alone. The third is the inverse cloze task: the words
of a query are gone from its document, and what stood around them remains. Each document has `QUERIES` of them, one in
each quarter, at a random depth: the share of the text before the hidden place.

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
from hf_posenc.eval.texts.needles import Niah

TASKS = ("passkey", "needle", "novels")
QUERIES = 4
"""Of a document; reading it is what takes time."""
QUERY = "Which code does {key} have?"
FEWEST_WORDS = 10
"""Words of a sentence that is a query; many shorter ones stand in several places."""


@dataclass(frozen=True)
class Document:
    """A text, the queries that it answers, and the depths of what they ask for."""

    text: str
    queries: tuple[str, ...]
    depths: tuple[float, ...]


def documents(
    task: str, count: int, length: int, tokens: Callable[[str], int], novels: Sequence[Sequence[str]]
) -> list[Document]:
    """Documents with as many sentences as ``length`` tokens hold; ``novels`` in sentences.

    Raises:
        LengthTooShort: The hidden sentences alone are longer.
    """
    own = task == "needle"
    haystack = text_filler(novels[0], random.Random(task)) if own else repeated(FILLER)

    def written(number: int, size: int) -> Document:
        seed = f"{task}-{number}"
        return part(seed, number, count, novels, size) if task == "novels" else needles(seed, haystack, size)

    def fitted(number: int) -> Document:
        return written(number, most_units(lambda size: tokens(written(number, size).text), length, "retrieval"))

    return [fitted(number) for number in range(count)]


def depths(seed: str) -> tuple[float, ...]:
    """A random one in each of `QUERIES` equal parts."""
    rng = random.Random(seed)
    return tuple((number + rng.random()) / QUERIES for number in range(QUERIES))


def needles(seed: str, haystack: Supply, size: int) -> Document:
    """Coined words with codes, in ``size`` sentences of a haystack."""
    notes, places = Niah(seed, 0.0, queries=QUERIES), depths(seed)
    hidden = [(place, sentence) for place, (_, sentence) in zip(places, notes.needles, strict=True)]
    text = notes.written(insert_needles(hidden, haystack.first(size)))
    return Document(text, tuple(QUERY.format(key=key) for key in notes.keys), places)


def part(seed: str, number: int, count: int, novels: Sequence[Sequence[str]], size: int) -> Document:
    """``size`` sentences of one of ``count`` parts of the novels, without those that are queries."""
    novel = novels[number % len(novels)]
    start = number // len(novels) * (len(novel) // -(-count // len(novels)))
    sentences, places = novel[start : start + size], depths(seed)
    able = [one for one, sentence in enumerate(sentences) if len(sentence.split()) >= FEWEST_WORDS]
    hidden = [able[int(place * len(able))] for place in places if able]
    rest = " ".join(sentence for one, sentence in enumerate(sentences) if one not in hidden)
    return Document(rest, tuple(sentences[one] for one in hidden), places)
