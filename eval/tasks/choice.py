"""Tasks that choose one of several answers: associations, and labels after many examples.

    acc    whether the right choice has the highest log-likelihood            chance: 1 / number of choices
    nll    nats/token of the right choice

Where choices are as long as each other no normalisation is needed; log-likelihoods are compared as they are.

    "The soup needs more salt and an hour on the stove." → label: 2          shots in rounds, each label once a round

Labels are numbers drawn anew for every prompt, whose meaning only the examples tell; a longer prompt has more of them.
Yen et al. 2024, "HELMET", arXiv:2410.02694, section 2, many-shot in-context learning.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any

from annotated_types import Interval

from hf_posenc.errors import UnreadableDocuments
from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.tasks.base import Doc
from hf_posenc.eval.tasks.retrieval import FileOptions, Marks, Record, RetrievalTask, Text, local_records
from hf_posenc.eval.tasks.ruler import HaystackTask
from hf_posenc.eval.tasks.sweep import Few
from hf_posenc.eval.texts.needles import ASSOCIATIONS, Association

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


class ChoiceTask(RetrievalTask):
    """A task whose exercises have ``choices`` besides the answer, and one answer."""

    def document(self, seed: str) -> Doc:
        """One question at every length and depth, with its choices."""
        exercise: Any = self.exercise(seed, self.sweep.depths[0] if self.deep else 0.0)
        self.check_readable(exercise.choices)
        right = exercise.choices.index(exercise.answers[0])
        return super().document(seed) | {"choices": list(exercise.choices), "right": right}

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Every choice in every cell; or every cell's prompt, and how to generate."""
        if self.generates:
            return super().arguments(doc)
        return [(prompt, f" {choice}") for prompt in doc["prompts"] for choice in doc["choices"]]

    def marks(self, doc: Doc, results: Sequence[Any]) -> Marks:
        """Every metric of one cell."""
        if self.generates:
            return super().marks(doc, results)
        scores = [score for score, _ in results]
        right = scores[doc["right"]]
        others = [score for number, score in enumerate(scores) if number != doc["right"]]
        return {"acc": [float(right > max(others))], "nll": [-right / doc["tokens"][0]]}


class AssociationTask(HaystackTask, ChoiceTask):
    """Who has been to a country, by the landmark beside the home."""

    Options = HaystackTask.Options.plus(distractors=(Annotated[Few, Interval(le=len(ASSOCIATIONS) - 1)], 3))
    make = Association


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


class LabelledText(Record):
    """A text, and the name of its kind."""

    text: Text
    label: Text


class ClassificationTask(ChoiceTask):
    """The label of a text, after more and more examples."""

    Options = FileOptions.plus(labels=(Annotated[Few, Interval(ge=2, le=100)] | None, None))
    deep = False
    reads_text = False
    shots = 400
    """Generated examples of each kind; after those, the first come again."""

    @cached_property
    def kinds(self) -> dict[str, list[str]]:
        """The texts of a local file, by label; empty without one."""
        found: dict[str, list[str]] = {}
        if not self.options.data:
            return found
        for record in local_records(self.options.data, self.name, LabelledText):
            found.setdefault(record.label, []).append(record.text)
        if len(found) < 2 or min(map(len, found.values())) < 2:
            raise UnreadableDocuments(
                f"The data has {len(found)} labels, the rarest with {min(map(len, found.values()), default=0)} texts. "
                "Give two labels or more, with two texts or more each."
            )
        return found

    def documents(self) -> list[Doc]:
        """One text per document; the results tell of how many kinds."""
        self.config.metadata |= {"labels": self.labels}
        return super().documents()

    @property
    def labels(self) -> int:
        """The number of kinds."""
        known = len(self.kinds or WORDS)
        labels = self.options.labels or min(6, known)
        if labels > known:
            raise TaskOptionOutOfRange(
                f"labels must be at most {known}, the number of kinds of text, got {labels}. Lower it."
            )
        return int(labels)

    def exercise(self, seed: str, depth: float) -> Classification:
        """A text, and examples."""
        return Classification(seed, self.kinds or examples(seed, sorted(WORDS), self.shots), self.labels)
