"""posenc_association: choose one of several answers, by a needle that shares no word with its question.

    acc    whether the right choice has the highest log-likelihood            chance: 1 / number of choices
    nll    nats/token of the right choice

Log-likelihoods are compared as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import Interval

from hf_posenc.eval.tasks.base import Doc
from hf_posenc.eval.tasks.retrieval import Marks
from hf_posenc.eval.tasks.ruler import HaystackTask
from hf_posenc.eval.tasks.sweep import Few
from hf_posenc.eval.texts.needles import ASSOCIATIONS, Association


class AssociationTask(HaystackTask):
    """Who has been to a country, by the landmark beside the home."""

    Options = HaystackTask.Options.plus(distractors=(Annotated[Few, Interval(le=len(ASSOCIATIONS) - 1)], 3))
    make = Association

    def document(self, seed: str) -> Doc:
        """One question at every length and depth, with its choices."""
        exercise: Any = self.exercise(seed, self.sweep.depths[0])
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
