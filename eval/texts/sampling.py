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
from typing import Protocol, TypeVar

from hf_posenc.eval.errors import TextTooShort

SHIFTS = 64
"""Tokens a window may move on, and a context may be shortened by, to find a clean cut."""


class Tokens(Protocol):
    """A document as tokens."""

    @property
    def ids(self) -> Sequence[int]:
        """Its tokens."""


Source = TypeVar("Source", bound=Tokens)


def placed(sources: Sequence[Source], count: int, longest: int, seed: int) -> list[tuple[Source, list[int]]]:
    """The documents that are used, and where windows end in each, ascending: ``count`` in all.

    Args:
        sources: documents; a longer one gets more windows, and one of at most ``longest`` + `SHIFTS` tokens none.
        count: windows.
        longest: tokens before the end of every window.
        seed: of the places.

    Raises:
        TextTooShort: the documents have no room for them.
    """
    rooms = [room_of(source, longest) for source in sources]
    check_places(sources, rooms, count, longest)
    begins = [0, *itertools.accumulate(rooms)]
    drawn = strata(begins[-1], count, random.Random(f"windows-{seed}"))
    found = [
        (source, [longest + place - begin for place in drawn if begin <= place < begin + room])
        for source, begin, room in zip(sources, begins, rooms, strict=False)
    ]
    return [(source, ends) for source, ends in found if ends]


def placed_in_each(source: Source, count: int, longest: int, seed: str) -> list[int]:
    """Where up to ``count`` windows end in one document that has at least ``longest`` tokens, ascending."""
    room = len(source.ids) - longest + 1
    return [longest + place for place in strata(room, min(count, room), random.Random(f"windows-{seed}"))]


def strata(size: int, count: int, rng: random.Random) -> list[int]:
    """One random whole number in each of ``count`` equal parts of 0 … ``size`` − 1, ascending."""
    return [rng.randrange(part * size // count, (part + 1) * size // count) for part in range(count)]


def room_of(source: Tokens, longest: int) -> int:
    """How many places a document has for the end of a window."""
    return max(0, len(source.ids) - longest - SHIFTS)


def check_places(sources: Sequence[Tokens], rooms: Sequence[int], count: int, longest: int) -> None:
    """Refuse texts with fewer places than windows.

    Raises:
        TextTooShort: they have.
    """
    if sum(rooms) >= count:
        return
    sizes = [len(source.ids) for source in sources]
    if len(sizes) == 1:
        raise TextTooShort(
            f"{count} windows of {longest} tokens need {longest + SHIFTS + count} tokens of text, got {sizes[0]}. "
            "Give a longer text (--text), shorter lengths (--lengths) or fewer samples (--samples)."
        )
    raise TextTooShort(
        f"{count} windows of {longest} tokens need documents of more than {longest + SHIFTS} tokens, and "
        f"{sum(map(bool, rooms))} of {len(sizes)} are as long; the longest has {max(sizes)}. "
        "Give longer documents, shorter lengths or fewer samples."
    )


def shares(rooms: Sequence[int], count: int) -> list[int]:
    """Divide ``count`` in proportion to ``rooms``, none of which gets more than it has (largest remainders)."""
    total = sum(rooms)
    found = [count * room // total for room in rooms]
    by_remainder = sorted(range(len(rooms)), key=lambda index: -(count * rooms[index] % total))
    for index in by_remainder[: count - sum(found)]:
        found[index] += 1
    return found


def distinct(names: Sequence[str]) -> list[str]:
    """Number the names that occur more than once: documents of one name are two all the same."""
    counts = Counter(names)
    numbers = {name: itertools.count(1) for name in counts}
    return [f"{name} ({next(numbers[name])})" if counts[name] > 1 else name for name in names]
