"""Passkey retrieval: a five-digit number is inserted into filler text, and the prompt asks for it.

    frame · filler × n · "The pass key is 71432. …" · filler × m · "What is the pass key? The pass key is"

The filler is a whole number of sentences, as many as fit, so that a prompt never exceeds the requested length and never
loses its frame. Depth is the share of the filler before the needle.

Mohtashami, Jaggi 2023, "Landmark Attention", arXiv:2305.16300, appendix.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from hf_posenc.eval.texts.haystack import FILLER, most_units

FRAME = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there.\n"
)
NEEDLE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "\nWhat is the pass key? The pass key is"

CountTokens = Callable[[str], int]


def draw_key(rng: random.Random) -> str:
    """Five digits, the first of them not zero."""
    return str(rng.randint(10_000, 99_999))


def answer(key: str) -> str:
    """The continuation that a right model writes, with the space that joins it to the prompt."""
    return f" {key}"


def sentences(count: int, filler: Sequence[str] = FILLER) -> str:
    """The first ``count`` filler sentences, repeated in order, each with a space after it."""
    return "".join(f"{filler[i % len(filler)]} " for i in range(count))


def compose(key: str, before: int, after: int, filler: Sequence[str] = FILLER) -> str:
    """The prompt with ``before`` filler sentences ahead of the needle and ``after`` behind it."""
    hidden = f"{sentences(before, filler)}{NEEDLE.format(key=key)} {sentences(after, filler)}"
    return f"{FRAME}{hidden.rstrip()}{QUESTION}"


def passkey(length: int, depth: float, key: str, count_tokens: CountTokens, filler: Sequence[str] = FILLER) -> str:
    """The longest passkey prompt that, with its answer, have at most ``length`` tokens."""

    def tokens(sentence_count: int) -> int:
        before = round(depth * sentence_count)
        return count_tokens(compose(key, before, sentence_count - before, filler) + answer(key))

    count = most_units(tokens, length, "passkey")
    before = round(depth * count)
    return compose(key, before, count - before, filler)
