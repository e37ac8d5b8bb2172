"""Where windows of text end: a stratified random sample of all places with enough text before them.

    document A   ········▏─────┊─────┊──      document B   ········▏───┊─────┊─────
                 longest   a random end in each stratum

The places of all documents are laid end to end and divided into as many strata of equal size as windows are wanted; one
place is drawn in each. No place is likelier than another, no part of the text is left out, and the sample depends on
the text, ``count``, ``longest`` and ``seed``, never on the lengths that are measured.

Cochran 1977, "Sampling Techniques", chapter 5 (stratified random sampling).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hf_posenc.eval.errors import TextTooShort

SHIFTS = 64
"""Tokens a window may move on, and a context may be shortened by, to find a clean cut."""


@dataclass(frozen=True)
class Tokenized:
    """A document, its tokens without special ones, where in the text each begins and ends, and its name.

    A text that is a single document needs no name.
    """

    text: str
    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    name: str = ""

    def at(self, token: int) -> str:
        """The name of a place in the document."""
        return f"{self.name}, token {token}" if self.name else f"token {token}"

    def named(self, token: int) -> dict[str, str]:
        """Name of a window that has this place, and its cluster: the document, or itself where there is only one."""
        return {"name": self.at(token), "cluster": self.name or self.at(token)}

    def piece(self, first: int, last: int) -> str:
        """The text of tokens ``first`` up to, without, ``last``."""
        return self.text[self.spans[first][0] : self.spans[last - 1][1]]


def placed(sources: Sequence[Tokenized], count: int, longest: int, seed: int) -> list[tuple[Tokenized, list[int]]]:
    """The documents that are used, and where windows end in each, ascending: ``count`` in all."""
    rooms = [max(0, len(source.ids) - longest - SHIFTS) for source in sources]
    begins = [0, *itertools.accumulate(rooms)]
    if begins[-1] < count:
        raise TextTooShort(
            f"{count} windows of {longest} tokens need documents of more than {longest + SHIFTS} tokens, and "
            f"{sum(map(bool, rooms))} of {len(sources)} are as long; the longest has "
            f"{max(len(source.ids) for source in sources)}. "
            "Give longer texts (--text), shorter lengths (--lengths) or fewer samples (--samples)."
        )
    drawn = strata(begins[-1], count, random.Random(f"windows-{seed}"))
    found = [
        (source, [longest + place - begin for place in drawn if begin <= place < begin + room])
        for source, begin, room in zip(sources, begins, rooms, strict=False)
    ]
    return [(source, ends) for source, ends in found if ends]


def placed_in_each(source: Tokenized, count: int, longest: int, seed: str) -> list[int]:
    """Where up to ``count`` windows end in one document that has at least ``longest`` tokens, ascending."""
    room = len(source.ids) - longest + 1
    return [longest + place for place in strata(room, min(count, room), random.Random(f"windows-{seed}"))]


def strata(size: int, count: int, rng: random.Random) -> list[int]:
    """One random whole number in each of ``count`` equal parts of 0 … ``size`` − 1, ascending."""
    return [rng.randrange(part * size // count, (part + 1) * size // count) for part in range(count)]


def distinct(names: Sequence[str]) -> list[str]:
    """Number the names that occur more than once: documents of one name are two all the same."""
    counts = Counter(names)
    numbers = {name: itertools.count(1) for name in counts}
    return [f"{name} ({next(numbers[name])})" if counts[name] > 1 else name for name in names]
