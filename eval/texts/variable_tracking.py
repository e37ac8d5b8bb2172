"""RULER's variable tracking: find all variables that hold a value, through chains of assignments.

    "Let mesodar be 4831957." … "Let tibenul be mesodar." … "Let gorafim be tibenul."      one chain, in this order

The requested chain is hidden among filler together with chains that start from other numbers. The answer is its names
in the order of the text, which is that of the chain.

Hsieh et al. 2024, "RULER", arXiv:2404.06654, section 3, variable tracking.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from hf_posenc.eval.texts.haystack import depths, filler, insert_needles
from hf_posenc.eval.texts.vocabulary import Supply, coined, number

INTRO = "In these notes names are given to numbers. Keep in mind which name stands for which number.\n"
STATEMENT = "Let {name} be {value}."
QUESTION = (
    "\nWhich {count} names stand for {value}, some of them by way of others? "
    "In the order of the notes, the names that stand for {value} are"
)


class VariableTracking:
    """One set of chains, in a haystack of any size.

    Args:
        seed: of names, numbers, filler and depths.
        hops: steps from the first name of a chain to its last.
        chains: number of chains; one of them is requested.
        haystack: filler around the statements, one of `HAYSTACKS` or ``text``; needles are statements about other
            names.
        sentences: of the user's text, for the haystack ``text``.
    """

    pinned = 0

    def __init__(
        self, seed: str, *, hops: int = 4, chains: int = 2, haystack: str = "prose", sentences: Sequence[str] = ()
    ) -> None:
        rng = random.Random(seed)
        names, numbers = Supply(lambda: coined(rng)), Supply(lambda: number(rng))
        self.statements: list[tuple[float, str]] = []
        for chain in range(chains):
            links = [next(numbers), *(next(names) for _ in range(hops + 1))]
            if chain == 0:
                self.value, self.answers = links[0], tuple(links[1:])
            statements = (STATEMENT.format(name=name, value=value) for value, name in pairwise(links))
            self.statements += zip(sorted(depths(rng, hops + 1)), statements, strict=True)
        others = Supply(lambda: STATEMENT.format(name=next(names), value=next(numbers)))
        self.filler = filler(haystack, random.Random(f"{seed}-filler"), others, sentences)

    def prompt(self, units: int) -> str:
        """The notes with ``units`` sentences of filler, the question, and the opening of its answer."""
        notes = " ".join(insert_needles(self.statements, self.filler.first(units)))
        return f"{INTRO}{notes}{QUESTION.format(count=len(self.answers), value=self.value)}"
