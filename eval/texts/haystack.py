"""Haystacks: sentences in which needles are inserted at given depths, and the vocabulary of both.

    filler × round(d₁ n) · needle₁ · filler · … · needle_k · filler          n sentences in all, depths d₁ ≤ … ≤ d_k

A depth is the share of the filler before the needle. It does not change with the length, and needles of equal depth
keep their order, so the order in the document is the same at every length.

    "mesodar", "tibenul"        consonant, vowel, …, seven letters: 14⁴ · 5³ = 4,802,000 words

All coined words have the same length, so none is a part of another, and none can be known from training. Everything is
drawn from a seed, in an order that does not depend on the length: a longer text starts with the sentences of a shorter.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from uuid import UUID

from hf_posenc.eval.errors import LengthTooShort, TokenizerTooPoor

HAYSTACKS = ("prose", "repeat", "needles")
OWN_TEXT = "text"
"""Name of the haystack that is made of the user's text."""
SENTENCE_ENDS = re.compile(r"(?<=[.!?…][\"'”’)])\s+|(?<=[.!?…])\s+|(?<=[。！？])|\n\s*\n")
MOST_WORDS, MOST_CHARACTERS = 20, 200
"""Longest sentence of filler; longer ones are divided, because prompts are fitted to a length by whole sentences."""
FILLER = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
PATTERN = (CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS)

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
    """Texts in a fixed order, generated on first use; with ``distinct``, no text comes twice."""

    def __init__(self, draw: Callable[[], str], *, distinct: bool = True) -> None:
        self.draw, self.distinct = draw, distinct
        self.texts: list[str] = []
        self.seen: set[str] = set()

    def __next__(self) -> str:
        """Generate the next text."""
        text = self.draw()
        while self.distinct and text in self.seen:
            text = self.draw()
        self.texts.append(text)
        self.seen.add(text)
        return text

    def first(self, count: int) -> list[str]:
        """The first ``count`` texts."""
        while len(self.texts) < count:
            next(self)
        return self.texts[:count]


def coined(rng: random.Random) -> str:
    """A pronounceable word of seven letters."""
    return "".join(rng.choice(letters) for letters in PATTERN)


def number(rng: random.Random) -> str:
    """A random number of seven digits."""
    return str(rng.randint(1_000_000, 9_999_999))


def identifier(rng: random.Random) -> str:
    """Thirty-two random hexadecimal digits in five groups, in the form of a UUID."""
    return str(UUID(int=rng.getrandbits(128)))


def sentence(rng: random.Random) -> str:
    """A random filler sentence."""
    parts: Sequence[Sequence[str]] = (HOW, WHO, DID, WHERE, WHEN)
    how, who, did, where, when = (rng.choice(part) for part in parts)
    return f"The {how} {who} {did} {where} {when}."


class Notes:
    """Filler with needles, and a question about them; only the amount of filler depends on the length.

    Attributes:
        intro: text before the filler.
        needles: depth and text of each needle.
        filler: texts between the needles.
        question: question, up to the place where the answer begins.
        answers: right answers, in the order that the question states.
        pinned: index of the answer at the requested depth.
    """

    intro: str
    needles: list[tuple[float, str]]
    filler: Supply
    question: str
    answers: tuple[str, ...]
    pinned = 0

    def prompt(self, units: int) -> str:
        """Intro, ``units`` texts of filler with the needles, the question, and the opening of its answer."""
        return f"{self.intro}{self.written(insert_needles(self.needles, self.filler.first(units)))}{self.question}"

    def written(self, texts: Sequence[str]) -> str:
        """Join needles and filler into one text."""
        return " ".join(texts)


def insert_needles(needles: Iterable[tuple[float, str]], filler: Sequence[str]) -> list[str]:
    """Insert each needle after its share of the filler."""
    mixed: list[str] = []
    passed = 0
    for depth, needle in sorted(needles, key=lambda placed: placed[0]):
        index = round(depth * len(filler))
        mixed += [*filler[passed:index], needle]
        passed = index
    return [*mixed, *filler[passed:]]


def filler(kind: str, rng: random.Random, needles: Supply, sentences: Sequence[str] = ()) -> Supply:
    """Filler of a kind: random sentences, the same five sentences, needles that are not requested, or a text."""
    if kind == OWN_TEXT:
        return text_filler(sentences, rng)
    if kind == "needles":
        return Supply(needles.__next__, distinct=False)
    if kind == "prose":
        return Supply(lambda: sentence(rng), distinct=False)
    return repeated(FILLER)


def depths(rng: random.Random, count: int) -> list[float]:
    """``count`` random depths, the same for all lengths."""
    return [rng.random() for _ in range(count)]


def listed(parts: Sequence[str]) -> str:
    """Join words as in ``a``, ``a and b``, ``a, b and c``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def sentences_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The sentences of texts in their order, each on one line."""
    return tuple(piece for text in texts for sentence in SENTENCE_ENDS.split(text) for piece in divided(sentence))


def divided(sentence: str) -> Iterator[str]:
    """Divide a sentence into pieces of at most `MOST_WORDS` words; words are cut at `MOST_CHARACTERS` characters."""
    words = [word[i : i + MOST_CHARACTERS] for word in sentence.split() for i in range(0, len(word), MOST_CHARACTERS)]
    for start in range(0, len(words), MOST_WORDS):
        yield " ".join(words[start : start + MOST_WORDS])


def from_random_start(sentences: Sequence[str], rng: random.Random) -> list[str]:
    """Rotate the sentences so that they start with a random one."""
    start = rng.randrange(len(sentences))
    return [*sentences[start:], *sentences[:start]]


def text_filler(sentences: Sequence[str], rng: random.Random) -> Supply:
    """Endless filler of the sentences in their order, from a random one on."""
    return repeated(from_random_start(sentences, rng))


def repeated(texts: Sequence[str]) -> Supply:
    """Endless filler of the texts in their order."""
    return Supply(cycle(texts).__next__, distinct=False)


def most_units(tokens: Callable[[int], int], length: int, what: str) -> int:
    """Largest number of filler texts (units) for which the prompt has at most ``length`` tokens.

    ``tokens`` counts the tokens of the prompt with a number of units; ``what`` names the task in errors.
    """
    low, low_cost, high, high_cost = 0, tokens(0), length + 1, 0
    if low_cost > length:
        raise LengthTooShort(
            f"A {what} prompt with its answer needs at least {low_cost} tokens with this tokenizer, "
            f"got length {length}. Ask for a length of {low_cost} or more."
        )
    probe, rounds = 16, 0  # the first guess is arbitrary
    while high - low > 1:
        probe = min(max(probe, low + 1), high - 1)
        cost = tokens(probe)
        if cost <= length:
            low, low_cost, rate = probe, cost, (cost - low_cost) / (probe - low)
        else:
            high, high_cost, rate = probe, cost, (cost - low_cost) / (probe - low)
        if high_cost:
            rate = (high_cost - low_cost) / (high - low)
        rounds += 1  # interpolation can converge slowly from one side, so every third probe halves the interval
        halve = high_cost > 0 and rounds % 3 == 0
        probe = (low + high) // 2 if halve else low + int((length - low_cost) / max(rate, 0.5))
    if low == length:
        raise TokenizerTooPoor(
            f"This tokenizer reads more than {length} units of filler as at most {length} tokens. "
            "Use a tokenizer that has a token for every word."
        )
    return low
