"""Haystacks: sentences in which needles are inserted at given depths.

    filler × round(d₁ n) · needle₁ · filler · … · needle_k · filler          n sentences in all, depths d₁ ≤ … ≤ d_k

A depth is the share of the filler before the needle. It does not change with the length, and needles of
one depth keep the order in which they are given: so the order in the document is the same at every length.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import cycle

from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.text_filler import text_filler
from hf_posenc.eval.texts.vocabulary import Supply, sentence

HAYSTACKS = ("prose", "repeat", "needles")
OWN_TEXT = "text"
"""The haystack of a text that is given."""


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
    """Filler sentences of a kind: random ones, the same five repeated, needles that are not requested, or a text's."""
    if kind == OWN_TEXT:
        return text_filler(sentences, rng)
    if kind == "needles":
        return Supply(needles.__next__, distinct=False)
    if kind == "prose":
        return Supply(lambda: sentence(rng), distinct=False)
    return Supply(cycle(passkey.FILLER).__next__, distinct=False)


def depths(rng: random.Random, count: int) -> list[float]:
    """Random depths, the same for all lengths."""
    return [rng.random() for _ in range(count)]


def listed(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
