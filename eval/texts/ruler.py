"""RULER's tasks: needles in a haystack, variable tracking, common and frequent words, and questions over documents.

    needles            "The code of mesodar is 4831957." … filler …        "The code of mesodar is"
    variable tracking  "Let mesodar be 4831957." … "Let tibenul be mesodar." … "Let gorafim be tibenul."
    common words       k words ``often`` times each, among a growing number of words ``rarely`` times each, shuffled
    frequent words     the r-th word comes ⌊n / r^α⌋ times (Zipf's law); the first k words are the answer
    questions          "Document 3. Mesodar Tibenul was born in Gorafim and works as a potter."   where was she born?
                       "Document 8. Gorafim lies on the river Sadoven and lives on salt."         on which river?

Every question has one right answer, which is the same at every length. Several codes of one key are asked for in the
order of the text, codes of several keys in the order of the question. The ``depth`` is that of one needle, the pinned
one; all other needles have random depths. Names are asked for in the order of the text, which is the order of their
chain; common words in the order of their first occurrence, and frequent words from the most frequent down. People and
towns are invented, so a right answer comes from the text.

Hsieh et al. 2024, "RULER", arXiv:2404.06654, section 3, where the documents are real ones. The forms of the tasks are
RULER's; words, codes, sentences and filler are our own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from hf_posenc.eval.texts.haystack import Notes, Supply, coined, depths, filler, identifier, listed, number, text_filler

CODES_INTRO = "Somewhere in these notes things are given codes. Keep every code in mind, you will be asked for some.\n"
NEEDLE = "The code of {key} is {value}."
ONE = "\nWhich code does {key} have? The code of {key} is"
VALUES = "\nWhich {count} codes does {key} have? In the order of the notes, the codes of {key} are"
QUERIES = "\nWhich codes do {keys} have? In this order, the codes of {keys} are"
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

CODE_KINDS = {"numbers": number, "words": coined, "uuids": identifier}


class Niah(Notes):
    """One set of needles, in a haystack of any size.

    Args:
        depth: depth of the pinned needle.
        queries: number of requested keys.
        codes: number of codes of each of these keys; more than one only for a single key.
        distractors: number of further keys with a code, which are not requested.
        haystack: filler around the needles, one of `HAYSTACKS`, or ``text``.
        code_kind: form of the codes, one of `CODE_KINDS`.
        sentences: sentences of the user's text, for the haystack ``text``.
    """

    intro = CODES_INTRO

    def __init__(
        self,
        seed: str,
        depth: float,
        *,
        queries: int = 1,
        codes: int = 1,
        distractors: int = 0,
        haystack: str = "prose",
        code_kind: str = "numbers",
        sentences: Sequence[str] = (),
    ) -> None:
        rng = random.Random(seed)
        keys = Supply(lambda: coined(rng))
        values = keys if code_kind == "words" else Supply(lambda: CODE_KINDS[code_kind](rng))
        others = Supply(lambda: NEEDLE.format(key=next(keys), value=next(values)))
        self.keys = keys.first(queries)
        self.answers = tuple(next(values) for _ in range(queries * codes))
        place = rng.randrange(queries)
        needle_depths = depths(rng, len(self.answers) - 1)
        needle_depths.insert(place, depth)
        if codes > 1:  # codes of one key are asked for in the order of the text
            needle_depths.sort()
        self.pinned = needle_depths.index(depth)
        owners = [key for key in self.keys for _ in range(codes)]
        needles = [NEEDLE.format(key=key, value=code) for key, code in zip(owners, self.answers, strict=True)]
        noise = others.first(distractors)
        self.needles = [*zip(needle_depths, needles, strict=True), *zip(depths(rng, distractors), noise, strict=True)]
        self.filler = filler(haystack, random.Random(f"{seed}-filler"), others, sentences)
        shape = VALUES if codes > 1 else ONE
        if queries > 1:
            shape = QUERIES
        self.question = shape.format(keys=listed(self.keys), key=self.keys[0], count=codes)


class VariableTracking(Notes):
    """One set of chains of names, in a haystack of any size.

    Args:
        hops: steps from the first name of a chain to its last.
        chains: number of chains; one of them is requested.
        haystack: filler around the statements, one of `HAYSTACKS` or ``text``; ``needles`` are statements about other
            names.
        sentences: sentences of the user's text, for the haystack ``text``.
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
        common_words: number of common words; the question asks for all of them.
        often: number of times that each common word occurs.
        rarely: number of times that every other word occurs; a unit of filler is one such word.
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
        # Common words are renamed so that they first occur in the same order at every length; the shuffle stays fair.
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
        # From this count on, the counts of the first `frequent_words + 1` ranks differ by at least one.
        self.fewest = 1 + int(1 / (frequent_words**-zipf - (frequent_words + 1) ** -zipf))

    def counts(self, first: int) -> list[int]:
        """Number of occurrences of each word, most frequent first, if the first word occurs ``first`` times."""
        counts: list[int] = []
        while (times := int(first / (len(counts) + 1) ** self.zipf)) > 0:
            counts.append(times)
        return counts

    def prompt(self, units: int) -> str:
        """The text, the question, and the opening of its answer; each unit is one more occurrence of the first word."""
        counts = self.counts(self.fewest + units)
        words = self.words.first(len(counts))
        mixed = [word for word, times in zip(words, counts, strict=True) for _ in range(times)]
        random.Random(f"{self.seed}-{units}").shuffle(mixed)
        return f"{TEXT_INTRO}{' '.join(mixed)}{FREQUENT.format(count=len(self.answers))}"


class Questions(Notes):
    """One question, among any number of documents.

    Args:
        depth: depth of the document about the person in question.
        qa_hops: number of documents that the answer needs, 1 or 2.
        sentences: sentences of the user's text; each is one of the other documents. By default, these are about other
            people and towns.
    """

    intro = DOCUMENTS_INTRO

    def __init__(self, seed: str, depth: float, *, qa_hops: int = 1, sentences: Sequence[str] = ()) -> None:
        rng = random.Random(seed)
        self.rng, self.words = random.Random(f"{seed}-others"), Supply(lambda: coined(rng).capitalize())
        name, town, river, documents = self.next_person()
        self.needles = list(zip([depth, *depths(rng, 1)], documents, strict=True))[:qa_hops]
        self.question = (ONE_HOP if qa_hops == 1 else TWO_HOPS).format(name=name)
        self.answers = (town if qa_hops == 1 else river,)
        waiting: list[str] = []

        def other() -> str:
            if not waiting:
                waiting.extend(self.next_person()[-1])
            return waiting.pop(self.rng.randrange(len(waiting)))

        self.filler = text_filler(sentences, self.rng) if sentences else Supply(other)

    def next_person(self) -> tuple[str, str, str, tuple[str, str]]:
        """Invent a person: name, town of birth, river of the town, and the documents about person and town."""
        first, last, town, river = (next(self.words) for _ in range(4))
        name = f"{first} {last}"
        about_person = PERSON.format(name=name, town=town, trade=self.rng.choice(TRADES))
        about_town = TOWN.format(town=town, river=river, goods=self.rng.choice(GOODS))
        return name, town, river, (about_person, about_town)

    def written(self, texts: Sequence[str]) -> str:
        """Number and join the documents."""
        return "\n".join(DOCUMENT.format(number=number, text=text) for number, text in enumerate(texts, 1))
