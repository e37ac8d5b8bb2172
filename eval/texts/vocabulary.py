"""Vocabulary of the retrieval tasks: invented words, numbers and plain sentences.

    "mesodar", "tibenul"        consonant, vowel, …, seven letters: 14⁴ · 5³ = 4,802,000 words

All coined words have one length, so none hides inside another, and none can be known from training. Everything comes
from a seed, in an order that does not depend on how much is needed: a longer text begins with the shorter one's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
PATTERN = (CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS)
WORDS = 14**4 * 5**3

WHO = (
    "baker", "carpenter", "child", "clerk", "farmer", "ferryman", "gardener", "guard", "miller", "neighbour",
    "painter", "pilot", "potter", "sailor", "shepherd", "smith", "teacher", "traveller", "weaver", "widow",
)  # fmt: skip
HOW = ("careful", "cheerful", "old", "patient", "quiet", "sleepy", "stubborn", "tall", "tired", "young")
DID = (
    "borrowed a ladder", "carried a basket", "closed the shutters", "counted the boats", "drew a map",
    "fed the horses", "hummed a tune", "lit a lamp", "looked for shade", "mended a fence", "peeled an apple",
    "read a letter", "sold a blanket", "swept the floor", "waited for rain", "watched the clouds",
)  # fmt: skip
WHERE = (
    "behind the barn", "beside the well", "by the river", "in the courtyard", "near the bridge", "on the hill",
    "outside the chapel", "under the old oak",
)  # fmt: skip
WHEN = ("after lunch", "at noon", "before dawn", "in the evening", "in spring", "on market day")


class Supply(Iterator[str]):
    """Texts in a fixed order, generated on first use."""

    def __init__(self, draw: Callable[[], str], *, distinct: bool = True) -> None:
        self.draw, self.distinct = draw, distinct
        self.made: list[str] = []
        self.seen: set[str] = set()

    def __next__(self) -> str:
        """The next one; among distinct ones, the next that is new."""
        text = self.draw()
        while self.distinct and text in self.seen:
            text = self.draw()
        self.made.append(text)
        self.seen.add(text)
        return text

    def first(self, count: int) -> list[str]:
        """The first ``count`` of them."""
        while len(self.made) < count:
            next(self)
        return self.made[:count]


def coined(rng: random.Random) -> str:
    """A pronounceable word of seven letters."""
    return "".join(rng.choice(letters) for letters in PATTERN)


def number(rng: random.Random) -> str:
    """Seven digits, the first of them not zero."""
    return str(rng.randint(1_000_000, 9_999_999))


def identifier(rng: random.Random) -> str:
    """Thirty-two hexadecimal digits in five groups, written as a UUID is."""
    digits = f"{rng.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def sentence(rng: random.Random) -> str:
    """A random filler sentence."""
    parts: Sequence[Sequence[str]] = (HOW, WHO, DID, WHERE, WHEN)
    how, who, did, where, when = (rng.choice(part) for part in parts)
    return f"The {how} {who} {did} {where} {when}."
