"""RULER's other shapes: variable tracking, common and frequent words, and questions over documents.

    variable tracking  "Let mesodar be 4831957." … "Let tibenul be mesodar." … "Let gorafim be tibenul."
    common words       k words ``often`` times each among more and more words that come ``rarely``, in a shuffled list
    frequent words     the r-th word comes ⌊n / r^α⌋ times: a Zipf check; the first k are the answer
    questions          "Document 3. Mesodar Tibenul was born in Gorafim and works as a potter."   where was she born?
                       "Document 8. Gorafim lies on the river Sadoven and lives on salt."         on which river?

Every question has one right answer, the same at every length: names in the order of the text, which is that of their
chain; common words in the order in which they first occur, frequent ones from the most frequent down. People and towns
are invented, so that a right answer comes from the text.

Hsieh et al. 2024, "RULER", arXiv:2404.06654, section 3; there the documents are real ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from hf_posenc.eval.texts.haystack import Notes, Supply, coined, depths, filler, number, text_filler

NAMES_INTRO = "In these notes names are given to numbers. Keep in mind which name stands for which number.\n"
STATEMENT = "Let {name} be {value}."
NAMES = (
    "\nWhich {count} names stand for {value}, some of them by way of others? "
    "In the order of the notes, the names that stand for {value} are"
)
LIST_INTRO = "This is a numbered list of words. Notice which of them come up again and again.\n"
COMMON = (
    "\nWhich {count} words come up most often in the list? "
    "In the order in which they first come up, the most common words are"
)
TEXT_INTRO = "This text is written in made-up words. Notice how often each of them comes up.\n"
FREQUENT = (
    "\nWhich {count} words come up most often in the text? From the most frequent down, the most frequent words are"
)
DOCUMENTS_INTRO = "Answer a question from these documents.\n"
PERSON = "{name} was born in {town} and works as a {trade}."
TOWN = "{town} lies on the river {river} and lives on {goods}."
DOCUMENT = "Document {number}. {text}"
ONE_HOP = "\nWhere was {name} born? {name} was born in"
TWO_HOPS = "\nOn which river lies the town in which {name} was born? {name} was born in a town on the river"
TRADES = ("baker", "clerk", "farmer", "gardener", "miller", "painter", "pilot", "potter", "sailor", "teacher", "weaver")
GOODS = ("barley", "cattle", "fish", "glass", "honey", "iron", "leather", "linen", "pottery", "salt", "slate", "wool")


class VariableTracking(Notes):
    """One set of chains, in a haystack of any size.

    Args:
        hops: steps from the first name of a chain to its last.
        chains: number of chains; one of them is requested.
        haystack: filler around the statements, one of `HAYSTACKS` or ``text``; needles are statements about other
            names.
        sentences: of the user's text, for the haystack ``text``.
    """

    intro = NAMES_INTRO

    def __init__(
        self, seed: str, *, hops: int = 4, chains: int = 2, haystack: str = "prose", sentences: Sequence[str] = ()
    ) -> None:
        rng = random.Random(seed)
        names, numbers = Supply(lambda: coined(rng)), Supply(lambda: number(rng))
        self.needles = []
        for chain in range(chains):
            links = [next(numbers), *(next(names) for _ in range(hops + 1))]
            if chain == 0:
                self.answers = tuple(links[1:])
                self.question = NAMES.format(count=len(self.answers), value=links[0])
            statements = (STATEMENT.format(name=name, value=value) for value, name in pairwise(links))
            self.needles += zip(sorted(depths(rng, hops + 1)), statements, strict=True)
        others = Supply(lambda: STATEMENT.format(name=next(names), value=next(numbers)))
        self.filler = filler(haystack, random.Random(f"{seed}-filler"), others, sentences)


class CommonWords(Notes):
    """One set of common words, in a list of any size.

    Args:
        common_words: how many are asked for.
        often: how often each of them comes.
        rarely: how often every other word comes; a unit of filler is one such word.
    """

    def __init__(self, seed: str, *, common_words: int = 5, often: int = 10, rarely: int = 1) -> None:
        self.seed, self.often, self.rarely = seed, often, rarely
        rng = random.Random(seed)
        self.words = Supply(lambda: coined(rng))
        self.answers = tuple(self.words.first(common_words))

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


class FrequentWords(Notes):
    """One ranking of words, in a text of any size."""

    def __init__(self, seed: str, *, frequent_words: int = 3, zipf: float = 2.0) -> None:
        self.seed, self.zipf = seed, zipf
        rng = random.Random(seed)
        self.words = Supply(lambda: coined(rng))
        self.answers = tuple(self.words.first(frequent_words))
        # From here on neighbours among the first `frequent_words + 1` ranks differ by at least one, at every size.
        self.fewest = 1 + int(1 / (frequent_words**-zipf - (frequent_words + 1) ** -zipf))

    def counts(self, first: int) -> list[int]:
        """How often each word comes, from the most frequent down, where the first comes ``first`` times."""
        counts: list[int] = []
        while (times := int(first / (len(counts) + 1) ** self.zipf)) > 0:
            counts.append(times)
        return counts

    def prompt(self, units: int) -> str:
        """The text with its first word ``units`` times more than it must come, and the question, as above."""
        counts = self.counts(self.fewest + units)
        words = self.words.first(len(counts))
        mixed = [word for word, times in zip(words, counts, strict=True) for _ in range(times)]
        random.Random(f"{self.seed}-{units}").shuffle(mixed)
        return f"{TEXT_INTRO}{' '.join(mixed)}{FREQUENT.format(count=len(self.answers))}"


class Questions(Notes):
    """One question, among any number of documents.

    Args:
        depth: of the person's document among the others.
        qa_hops: documents needed for the answer, 1 or 2.
        sentences: of the user's text, each of them one of the other documents; none for documents about other people.
    """

    intro = DOCUMENTS_INTRO

    def __init__(self, seed: str, depth: float, *, qa_hops: int = 1, sentences: Sequence[str] = ()) -> None:
        rng = random.Random(seed)
        self.rng, self.words = random.Random(f"{seed}-others"), Supply(lambda: coined(rng).capitalize())
        name, town, river, documents = self.life()
        self.needles = list(zip([depth, *depths(rng, 1)], documents, strict=True))[:qa_hops]
        self.question = (ONE_HOP if qa_hops == 1 else TWO_HOPS).format(name=name)
        self.answers = (town if qa_hops == 1 else river,)
        waiting: list[str] = []

        def other() -> str:
            if not waiting:
                waiting.extend(self.life()[-1])
            return waiting.pop(self.rng.randrange(len(waiting)))

        self.filler = text_filler(sentences, self.rng) if sentences else Supply(other)

    def life(self) -> tuple[str, str, str, tuple[str, str]]:
        """The next person's name, town of birth and its river; and the documents about the person and the town."""
        first, last, town, river = (next(self.words) for _ in range(4))
        person = PERSON.format(name=f"{first} {last}", town=town, trade=self.rng.choice(TRADES))
        return (
            f"{first} {last}",
            town,
            river,
            (person, TOWN.format(town=town, river=river, goods=self.rng.choice(GOODS))),
        )

    def written(self, texts: Sequence[str]) -> str:
        """The documents, numbered."""
        return "\n".join(DOCUMENT.format(number=number, text=text) for number, text in enumerate(texts, 1))
