"""Filler from the user's text: its sentences as haystack, its tokens as strings to copy; repeated where it is short."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence

from hf_posenc.eval.errors import TextTooShort
from hf_posenc.eval.texts.vocabulary import Supply
from hf_posenc.eval.texts.windows import Tokenized

SENTENCE_ENDS = re.compile(r"(?<=[.!?…][\"'”’)])\s+|(?<=[.!?…])\s+|(?<=[。！？])|\n\s*\n")
MOST_WORDS, MOST_CHARACTERS = 20, 200
"""Longest sentence; longer ones are divided, since filler comes in whole sentences, and so do lengths and depths."""


def sentences_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The sentences of some texts, in order, on one line each."""
    return tuple(piece for text in texts for sentence in SENTENCE_ENDS.split(text) for piece in divided(sentence))


def divided(sentence: str) -> Iterator[str]:
    """A sentence in pieces of at most `MOST_WORDS` words, none longer than `MOST_CHARACTERS`; nothing of blanks."""
    words = [word[i : i + MOST_CHARACTERS] for word in sentence.split() for i in range(0, len(word), MOST_CHARACTERS)]
    for start in range(0, len(words), MOST_WORDS):
        yield " ".join(words[start : start + MOST_WORDS])


def from_random_start(sentences: Sequence[str], rng: random.Random) -> list[str]:
    """The sentences from a random one on, and then those before it."""
    start = rng.randrange(len(sentences))
    return [*sentences[start:], *sentences[:start]]


def text_filler(sentences: Sequence[str], rng: random.Random) -> Supply:
    """The sentences from a random one on, over and over."""
    order, position = from_random_start(sentences, rng), iter(range(2**62))
    return Supply(lambda: order[next(position) % len(order)], distinct=False)


def passage(sources: Sequence[Tokenized], count: int, rng: random.Random, without: int | None = None) -> list[int]:
    """``count`` tokens of one document from a random place on; from its beginning again where it ends.

    Longer documents are taken more often, in proportion to their tokens; the token ``without`` is left out.

    Raises:
        TextTooShort: no document has any other token.
    """
    documents = [[token for token in source.ids if token != without] for source in sources]
    if not any(documents):
        raise TextTooShort("The text has no tokens to copy. Give one with words.")
    (ids,) = rng.choices(documents, list(map(len, documents)))
    start = rng.randrange(len(ids))
    return [ids[(start + i) % len(ids)] for i in range(count)]
