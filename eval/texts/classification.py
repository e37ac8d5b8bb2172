"""Many-shot in-context learning: texts with numbers as labels, whose meaning only the examples tell.

    "The soup needs more salt and an hour on the stove." → label: 2          shots in rounds, each label once a round

A unit of filler is one more example, so a longer prompt has more of them. Labels are numbers drawn anew for every
prompt, and carry no meaning. Examples are generated, or records ``{"text": "…", "label": "…"}`` of a local file.

Yen et al. 2024, "HELMET", arXiv:2410.02694, section 2, many-shot in-context learning.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

INTRO = "Each text has the number of its kind. Give the number of the last one.\n\n"
SHOT = "{text}\nlabel: {label}\n\n"
ASKED = "{text}\nlabel:"
WORDS = {
    "cooking": ["oven", "soup", "pepper", "dough", "butter", "recipe", "onion", "kettle", "pan", "sauce"],
    "weather": ["storm", "cloud", "drizzle", "sunshine", "frost", "thunder", "breeze", "fog", "hail", "snow"],
    "music": ["violin", "choir", "melody", "drum", "concert", "piano", "rhythm", "song", "trumpet", "singer"],
    "sport": ["goal", "referee", "sprint", "match", "coach", "racket", "stadium", "medal", "team", "marathon"],
    "travel": ["train", "suitcase", "ticket", "harbour", "passport", "flight", "station", "map", "hotel", "luggage"],
    "medicine": ["doctor", "fever", "bandage", "nurse", "hospital", "pill", "surgeon", "cough", "patient", "wound"],
    "farming": ["tractor", "harvest", "barley", "cow", "plough", "field", "fence", "sheep", "barn", "hay"],
    "money": ["bank", "loan", "salary", "tax", "coin", "invoice", "debt", "budget", "wallet", "price"],
}  # fmt: skip
FRAMES = (
    "Yesterday we talked about the {0} and the {1}.", "She wrote a letter on {0}, {1} and {2}.",
    "First came the {0}, then the {1}.", "Nobody had expected the {0} after such a {1}.",
    "He remembered the {0}, the {1} and the {2}.", "All morning it was {0} here and {1} there.",
)  # fmt: skip


def examples(seed: str, kinds: Sequence[str], count: int) -> dict[str, list[str]]:
    """``count`` generated texts of each kind."""
    rng = random.Random(f"{seed}-texts")
    return {kind: [rng.choice(FRAMES).format(*rng.sample(WORDS[kind], 3)) for _ in range(count)] for kind in kinds}


class Classification:
    """One text to be labelled, after any number of examples.

    Args:
        seed: of labels and order.
        texts: of each kind; the first of the asked kind is asked for, and no example.
        most: number of kinds used.
    """

    pinned = 0

    def __init__(self, seed: str, texts: dict[str, list[str]], most: int) -> None:
        self.seed = seed
        rng = random.Random(seed)
        kinds = rng.sample(sorted(texts), min(most, len(texts)))
        digits = list(map(str, range(10))) if len(kinds) <= 10 else [f"{n:02d}" for n in range(100)]
        self.labels = dict(zip(kinds, rng.sample(digits, len(kinds)), strict=True))
        asked = rng.choice(kinds)
        self.choices, self.answers = tuple(sorted(self.labels.values())), (self.labels[asked],)
        shuffled = {kind: rng.sample(texts[kind], len(texts[kind])) for kind in kinds}
        self.text = shuffled[asked].pop(0)
        self.texts = {kind: some or texts[kind] for kind, some in shuffled.items()}

    def prompt(self, units: int) -> str:
        """``units`` examples, the text, and the opening of its label."""
        kinds, rng, shots = list(self.labels), random.Random(f"{self.seed}-order"), []
        for number in range(units):
            within = number % len(kinds)
            if within == 0:
                order = rng.sample(kinds, len(kinds))
            some = self.texts[order[within]]
            shots.append(SHOT.format(text=some[number // len(kinds) % len(some)], label=self.labels[order[within]]))
        return f"{INTRO}{''.join(shots)}{ASKED.format(text=self.text)}"
