"""Base class of tasks that choose one of several answers, and the tasks: associations, labels, LongBench v2.

    acc    whether the right choice has the highest log-likelihood            chance: 1 / number of choices
    nll    nats/token of the right choice

Where choices are as long as each other no normalisation is needed; log-likelihoods are compared as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from hf_posenc.errors import UnreadableDocuments
from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.tasks.base import Doc
from hf_posenc.eval.tasks.retrieval import Marks, RetrievalTask
from hf_posenc.eval.tasks.ruler import HaystackTask
from hf_posenc.eval.texts.associations import ASSOCIATIONS, Association
from hf_posenc.eval.texts.classification import WORDS, Classification, examples
from hf_posenc.eval.texts.local_records import local_records, texts_of


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
    """Who has been to a country, by the landmark beside the home. Options: ``distractors``, ``haystack``."""

    def exercise(self, seed: str, depth: float) -> Association:
        """A needle at ``depth``, and people who live elsewhere."""
        distractors = self.options.whole("distractors", 3, most=len(ASSOCIATIONS) - 1)
        return Association(seed, depth, distractors=distractors, **self.haystack())


class ClassificationTask(ChoiceTask):
    """The label of a text, after ever more examples. Options: ``labels``, ``data``."""

    deep = False
    reads_text = False
    shots = 400
    """Generated examples of each kind; after those, the first come again."""

    @cached_property
    def kinds(self) -> dict[str, list[str]]:
        """The texts of a local file, by label; empty without one."""
        found: dict[str, list[str]] = {}
        example = '{"text": "…", "label": "…"}'
        given = self.options.paths("data")
        for place, record in local_records(given, self.name, example) if given else ():
            record["label"] = str(record["label"]) if isinstance(record.get("label"), int) else record.get("label")
            (text, *_), (label, *_) = texts_of(record, ("text",), place), texts_of(record, ("label",), place)
            found.setdefault(label, []).append(text)
        if given and (len(found) < 2 or min(map(len, found.values())) < 2):
            raise UnreadableDocuments(
                f"The data has {len(found)} labels, the rarest with {min(map(len, found.values()), default=0)} texts. "
                "Give two labels or more, with two texts or more each."
            )
        return found

    def exercise(self, seed: str, depth: float) -> Classification:
        """A text, and examples."""
        labels = self.options.whole("labels", min(6, len(self.kinds) or 6), least=2, most=100)
        if labels > len(self.kinds or WORDS):
            raise TaskOptionOutOfRange(
                f"labels must be at most {len(self.kinds or WORDS)}, the kinds of text, got {labels}. Lower it."
            )
        return Classification(seed, self.kinds or examples(seed, sorted(WORDS), self.shots), labels)
