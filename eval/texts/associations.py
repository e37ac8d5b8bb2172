"""Needles without word overlap: the question shares no content word with the needle, and asks for an association.

    needle      "Dorian lives right beside the Eiffel Tower."
    question    "Which person has been to France?"                     → Dorian

A needle in a haystack is often found by its words alone. Here the model must know that the one implies the other, and
choose among people who live elsewhere.

Modarressi et al. 2025, "NoLiMa: Long-Context Evaluation Beyond Literal Matching", arXiv:2502.05167. The idea is
NoLiMa's; the sentences are not, and numbers are comparable with each other only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hf_posenc.eval.texts.haystack import depths, filler, insert_needles
from hf_posenc.eval.texts.vocabulary import Supply

INTRO = "In these notes some people are mentioned. Keep in mind what is said about each of them.\n"
LIVES = "{name} lives right beside {place}."
WORKS = "{name} works all week {place}."
BEEN = "\nWhich person has been to {where}? The answer is"
PEOPLE = (
    "Agnes", "Bruno", "Clara", "Dorian", "Edith", "Felix", "Greta", "Hector", "Irene", "Jonas", "Karla", "Leo",
    "Martha", "Nora", "Oscar", "Paula", "Quentin", "Rosa", "Silas", "Thea", "Ulrich", "Vera", "Walter", "Xenia",
    "Yvonne", "Zeno",
)  # fmt: skip
ASSOCIATIONS = (
    ("the Eiffel Tower", "France"), ("the Colosseum", "Italy"), ("Big Ben", "England"), ("the Kremlin", "Russia"),
    ("the Statue of Liberty", "America"), ("the pyramids of Giza", "Egypt"), ("the Acropolis", "Greece"),
    ("the Taj Mahal", "India"), ("the Brandenburg Gate", "Germany"), ("Mount Fuji", "Japan"),
    ("the Sagrada Familia", "Spain"), ("the Forbidden City", "China"), ("Niagara Falls", "Canada"),
    ("the Sydney Opera House", "Australia"), ("Christ the Redeemer", "Brazil"), ("Machu Picchu", "Peru"),
)  # fmt: skip
"""A landmark, and the country where it stands."""


class Association:
    """One needle that implies the answer, people who live elsewhere, and any amount of filler.

    Args:
        seed: of people, places, filler and depths.
        depth: of the needle.
        distractors: people who live elsewhere.
        haystack: filler, one of `HAYSTACKS` or ``text``; needles are people without a landmark.
        sentences: of the user's text, for the haystack ``text``.
    """

    pinned = 0

    def __init__(
        self, seed: str, depth: float, *, distractors: int = 3, haystack: str = "prose", sentences: Sequence[str] = ()
    ) -> None:
        rng = random.Random(seed)
        places = rng.sample(ASSOCIATIONS, distractors + 1)
        names = rng.sample(PEOPLE, distractors + 1)
        self.where, self.answers = places[0][1], (names[0],)
        self.choices = tuple(rng.sample(names, len(names)))
        said = [LIVES.format(name=name, place=place) for name, (place, _) in zip(names, places, strict=True)]
        self.needles = list(zip([depth, *depths(rng, distractors)], said, strict=True))
        idle = [name for name in PEOPLE if name not in names]
        others = Supply(lambda: WORKS.format(name=rng.choice(idle), place="at home"), distinct=False)
        self.filler = filler(haystack, random.Random(f"{seed}-filler"), others, sentences)

    def prompt(self, units: int) -> str:
        """The notes with ``units`` sentences of filler, the question, and the opening of its answer."""
        notes = insert_needles(self.needles, self.filler.first(units))
        return f"{INTRO}{' '.join(notes)}{BEEN.format(where=self.where)}"
