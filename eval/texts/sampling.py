"""Places where windows of text end: a stratified random sample of all places with enough text before them.

    document A   ········▏─────┊─────┊──      document B   ········▏───┊─────┊─────
                 longest   a random end in each stratum

The places of all documents form one sequence, which is divided into one stratum of equal size for each window; one
place is drawn in each stratum. All places are equally likely, and no part of the text is left out. The sample depends
on the text, ``count``, ``longest`` and ``seed``, but not on the lengths that are measured.

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
"""Most tokens by which a window is moved, or a context shortened, to find a clean cut."""


@dataclass(frozen=True)
class Tokenized:
    """A tokenized document.

    Attributes:
        text: its text.
        ids: tokens of the text, without special tokens.
        spans: first character and end of each token in the text.
        name: name of the document; empty if it is the only one.
    """

    text: str
    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    name: str = ""

    def named(self, token: int) -> dict[str, str]:
        """Name and cluster of the window at a place; windows of a single document are a cluster each."""
        name = f"{self.name}, token {token}" if self.name else f"token {token}"
        return {"name": name, "cluster": self.name or name}

    def piece(self, first: int, last: int) -> str:
        """The text of the tokens from ``first`` to before ``last``."""
        return self.text[self.spans[first][0] : self.spans[last - 1][1]]


def placed(sources: Sequence[Tokenized], count: int, longest: int, seed: int) -> list[tuple[Tokenized, list[int]]]:
    """Draw the ends of ``count`` windows: pairs of a document and the ends in it, ascending."""
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
    by_document = [
        (source, [longest + place - begin for place in drawn if begin <= place < begin + room])
        for source, begin, room in zip(sources, begins, rooms, strict=False)
    ]
    return [(source, ends) for source, ends in by_document if ends]


def placed_in_each(source: Tokenized, count: int, longest: int, seed: str) -> list[int]:
    """Draw the ends of up to ``count`` windows in one document of at least ``longest`` tokens, ascending."""
    room = len(source.ids) - longest + 1
    return [longest + place for place in strata(room, min(count, room), random.Random(f"windows-{seed}"))]


def strata(size: int, count: int, rng: random.Random) -> list[int]:
    """Draw one whole number from each of ``count`` equal parts of 0 … ``size`` − 1."""
    return [rng.randrange(part * size // count, (part + 1) * size // count) for part in range(count)]


def distinct(names: Sequence[str]) -> list[str]:
    """Number the names that occur more than once, so that different documents have different names."""
    counts = Counter(names)
    numbers = {name: itertools.count(1) for name in counts}
    return [f"{name} ({next(numbers[name])})" if counts[name] > 1 else name for name in names]
