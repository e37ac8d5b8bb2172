"""RULER's common words extraction and frequent words extraction: find the most frequent words of a text.

    common words      k words ``often`` times each among ever more words that come ``rarely``, in a shuffled list
    frequent words    the r-th word comes ⌊n / r^α⌋ times: a Zipf check; the first k are the answer

The requested words are the same at every length. Common words are requested in the order in which they first occur,
frequent ones from the most frequent down, so that there is one right answer.

Hsieh et al. 2024, "RULER", arXiv:2404.06654, section 3, common and frequent words extraction.
"""

from __future__ import annotations

import random

from hf_posenc.eval.texts.vocabulary import Supply, coined

LIST_INTRO = "This is a numbered list of words. Notice which of them come up again and again.\n"
COMMON = (
    "\nWhich {count} words come up most often in the list? "
    "In the order in which they first come up, the most common words are"
)
TEXT_INTRO = "This text is written in made-up words. Notice how often each of them comes up.\n"
FREQUENT = (
    "\nWhich {count} words come up most often in the text? From the most frequent down, the most frequent words are"
)


class CommonWords:
    """One set of common words, in a list of any size.

    Args:
        seed: of words and order.
        count: common words.
        often: how often each of them comes.
        rarely: how often every other word comes; a unit of filler is one such word.
    """

    pinned = 0

    def __init__(self, seed: str, *, count: int = 5, often: int = 10, rarely: int = 1) -> None:
        self.seed, self.often, self.rarely = seed, often, rarely
        rng = random.Random(seed)
        self.words = Supply(lambda: coined(rng))
        self.answers = tuple(self.words.first(count))

    def prompt(self, units: int) -> str:
        """The list with ``units`` rare words, the question, and the opening of its answer."""
        count = len(self.answers)
        rare = self.words.first(count + units)[count:]
        mixed = [*self.answers] * self.often + rare * self.rarely
        random.Random(f"{self.seed}-{units}").shuffle(mixed)
        # Renamed, so that the answers come up in the same order at every length; the shuffle stays as fair as it was.
        seen = iter(self.answers)
        names = {word: next(seen) for word in dict.fromkeys(mixed) if word in self.answers}
        entries = (f"{number}. {names.get(word, word)}" for number, word in enumerate(mixed, 1))
        return f"{LIST_INTRO}{' '.join(entries)}{COMMON.format(count=count)}"


class FrequentWords:
    """One ranking of words, in a text of any size.

    Args:
        seed: of words and order.
        count: requested words.
        alpha: how fast words become rare, 1 … 3; a unit of filler makes the first word come once more.
    """

    pinned = 0

    def __init__(self, seed: str, *, count: int = 3, alpha: float = 2.0) -> None:
        self.seed, self.alpha = seed, alpha
        rng = random.Random(seed)
        self.words = Supply(lambda: coined(rng))
        self.answers = tuple(self.words.first(count))
        # From here on neighbours among the first `count + 1` ranks differ by at least one, at every size.
        self.fewest = 1 + int(1 / (count**-alpha - (count + 1) ** -alpha))

    def counts(self, first: int) -> list[int]:
        """How often each word comes, from the most frequent down, where the first comes ``first`` times."""
        counts: list[int] = []
        while (times := int(first / (len(counts) + 1) ** self.alpha)) > 0:
            counts.append(times)
        return counts

    def prompt(self, units: int) -> str:
        """The text with its first word ``units`` times more than it must come, and the question, as above."""
        counts = self.counts(self.fewest + units)
        words = self.words.first(len(counts))
        mixed = [word for word, times in zip(words, counts, strict=True) for _ in range(times)]
        random.Random(f"{self.seed}-{units}").shuffle(mixed)
        return f"{TEXT_INTRO}{' '.join(mixed)}{FREQUENT.format(count=len(self.answers))}"
