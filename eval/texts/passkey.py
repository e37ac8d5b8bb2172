"""Passkey retrieval: a five-digit number is inserted into filler text, and the prompt asks for it.

    frame · filler × n · "The pass key is 71432. …" · filler × m · "What is the pass key? The pass key is"

The filler consists of as many whole sentences as fit, so that a prompt never exceeds the requested length and never
loses its frame. Depth is the share of the filler before the needle.

Mohtashami, Jaggi 2023, "Landmark Attention", arXiv:2305.16300, appendix.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from hf_posenc.eval.texts.haystack import FILLER, Notes, most_units, repeated

FRAME = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there.\n"
)
NEEDLE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "\nWhat is the pass key? The pass key is"

CountTokens = Callable[[str], int]


def draw_key(rng: random.Random) -> str:
    """A random number of five digits."""
    return str(rng.randint(10_000, 99_999))


def answer(key: str) -> str:
    """The right answer, with the space that joins it to the prompt."""
    return f" {key}"


class Passkey(Notes):
    """One key at a depth; the filler starts again from its first sentence after the key."""

    intro, question = FRAME, QUESTION

    def __init__(self, key: str, depth: float, filler: Sequence[str] = FILLER) -> None:
        self.depth, self.needle, self.filler = depth, NEEDLE.format(key=key), repeated(filler)
        self.answers = (key,)

    def prompt(self, units: int) -> str:
        """The prompt with ``units`` sentences of filler."""
        before = round(self.depth * units)
        hidden = [*self.filler.first(before), self.needle, *self.filler.first(units - before)]
        return f"{self.intro}{' '.join(hidden)}{self.question}"


def passkey(length: int, depth: float, key: str, count_tokens: CountTokens, filler: Sequence[str] = FILLER) -> str:
    """The longest passkey prompt that, with its answer, has at most ``length`` tokens."""
    notes = Passkey(key, depth, filler)
    return notes.prompt(most_units(lambda units: count_tokens(notes.prompt(units) + answer(key)), length, "passkey"))
