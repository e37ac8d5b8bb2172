"""Question answering over many documents about invented people; one or two documents hold the answer.

    "Document 3. Mesodar Tibenul was born in Gorafim and works as a potter."        one hop: where was she born?
    "Document 8. Gorafim lies on the river Sadoven and lives on salt."              two hops: on which river?

``depth`` is that of the person's document. Nothing can be known from training, so a right answer comes from the text.

Hsieh et al. 2024, "RULER", arXiv:2404.06654, section 3, question answering; there the documents are real ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from hf_posenc.eval.texts.haystack import depths, insert_needles
from hf_posenc.eval.texts.text_filler import text_filler
from hf_posenc.eval.texts.vocabulary import Supply, coined

INTRO = "Answer a question from these documents.\n"
PERSON = "{name} was born in {town} and works as a {trade}."
TOWN = "{town} lies on the river {river} and lives on {goods}."
DOCUMENT = "Document {number}. {text}"
ONE_HOP = "\nWhere was {name} born? {name} was born in"
TWO_HOPS = "\nOn which river lies the town in which {name} was born? {name} was born in a town on the river"
TRADES = ("baker", "clerk", "farmer", "gardener", "miller", "painter", "pilot", "potter", "sailor", "teacher", "weaver")
GOODS = ("barley", "cattle", "fish", "glass", "honey", "iron", "leather", "linen", "pottery", "salt", "slate", "wool")


@dataclass(frozen=True)
class Life:
    """A person, the town of birth, and its river: two documents."""

    name: str
    town: str
    river: str
    trade: str
    goods: str

    @property
    def documents(self) -> tuple[str, str]:
        """About the person, and about the town."""
        return (
            PERSON.format(name=self.name, town=self.town, trade=self.trade),
            TOWN.format(town=self.town, river=self.river, goods=self.goods),
        )


class Questions:
    """One question, among any number of documents.

    Args:
        seed: of people, towns and depths.
        depth: of the person's document among the others.
        hops: documents needed for the answer, 1 or 2.
        sentences: of the user's text, each of them one of the other documents; none for documents about other people.
    """

    pinned = 0

    def __init__(self, seed: str, depth: float, *, hops: int = 1, sentences: Sequence[str] = ()) -> None:
        rng = random.Random(seed)
        self.rng, self.words = random.Random(f"{seed}-others"), Supply(lambda: coined(rng).capitalize())
        self.target, self.hops = self.life(), hops
        self.gold = list(zip([depth, *depths(rng, 1)], self.target.documents, strict=True))[:hops]
        self.answers = (self.target.town if hops == 1 else self.target.river,)
        waiting: list[str] = []

        def other() -> str:
            if not waiting:
                waiting.extend(self.life().documents)
            return waiting.pop(self.rng.randrange(len(waiting)))

        self.others = text_filler(sentences, self.rng) if sentences else Supply(other)

    def life(self) -> Life:
        """The next person."""
        first, last, town, river = (next(self.words) for _ in range(4))
        return Life(f"{first} {last}", town, river, self.rng.choice(TRADES), self.rng.choice(GOODS))

    def prompt(self, units: int) -> str:
        """The needed documents among ``units`` others, the question, and the opening of its answer."""
        texts = insert_needles(self.gold, self.others.first(units))
        documents = "\n".join(DOCUMENT.format(number=number, text=text) for number, text in enumerate(texts, 1))
        question = ONE_HOP if self.hops == 1 else TWO_HOPS
        return f"{INTRO}{documents}{question.format(name=self.target.name)}"
