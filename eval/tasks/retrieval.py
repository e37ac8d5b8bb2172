"""Base class of lm-eval tasks that retrieve fixed answers from prompts of a given length, and the passkey task.

    scoring: forced       prompt + " a₁," → " a₂"      each answer after the right answers before it, one request each
    scoring: generate     prompt → text                RULER's string match

``forced``, the default, needs no generation and no parsing. ``acc`` is the share of answers that greedy decoding would
write completely; ``nll`` is the loss in nats/token, averaged over answers. The question states the order of the
answers. `hf_posenc.eval.lm.scorer` answers all requests of a prompt in one forward pass. With ``generate``, ``match``
is the share of answers that occur in the text, and ``part`` is whether any answer does.

``acc_L512`` is the mean over all answers and depths; ``acc_L512_D50`` is the value of the one needle at that depth.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from lm_eval.api.metrics import mean

from hf_posenc.eval.errors import TokenizerTooPoor
from hf_posenc.eval.tasks.base import Cell, Doc, LengthSweep, Metric, named_scores
from hf_posenc.eval.tasks.sweep import TaskOptions
from hf_posenc.eval.texts.haystack import FILLER, Notes, from_random_start, most_units
from hf_posenc.eval.texts.passkey import Passkey, draw_key

Marks = dict[str, list[float]]


def continuations(answers: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of the text between prompt and answer, and the answer."""
    return [("".join(f" {done}," for done in answers[:index]), f" {answer}") for index, answer in enumerate(answers)]


class RetrievalOptions(TaskOptions):
    """How answers are scored: by teacher forcing, or in generated text."""

    scoring: Literal["forced", "generate"] = "forced"


class RetrievalTask(LengthSweep):
    """A task whose prompts hold fixed answers in as much filler as fits; subclasses define the exercise."""

    deep = True
    Options: ClassVar[type[TaskOptions]] = RetrievalOptions
    make: ClassVar[Callable[..., Notes]]
    """Makes an exercise from a seed, a depth if the task has depths, and the options of the task."""
    made_of_text: ClassVar[bool] = False
    """Whether the user's text, if there is one, serves as filler."""
    forced: ClassVar[dict[str, Metric]] = {"acc": (mean, True), "nll": (mean, False)}
    generated: ClassVar[dict[str, Metric]] = {"match": (mean, True), "part": (mean, True)}
    at_lengths: ClassVar[frozenset[str]] = frozenset({"part"})

    def __init__(self, config: dict[str, Any]) -> None:
        self.generates = RetrievalOptions.of(config["metadata"]).scoring == "generate"
        self.request_type = "generate_until" if self.generates else "loglikelihood"
        self.metrics = self.generated if self.generates else self.forced  # type: ignore[misc]
        super().__init__(config)
        self.OUTPUT_TYPE = self.request_type  # lm-eval pads the requests of this type to equal numbers per process

    def exercise(self, seed: str, depth: float) -> Notes:
        """The exercise of a sample; ``depth`` is 0 if the task is not `deep`."""
        options = self.options.model_dump(exclude={"scoring"})
        if self.made_of_text:
            options["sentences"] = self.own_sentences
        return type(self).make(seed, depth, **options) if self.deep else type(self).make(seed, **options)

    def documents(self) -> list[Doc]:
        """One set of answers per document, requested at every length and depth."""
        return [self.document(f"{self.name}-{self.sweep.seed}-{sample}") for sample in range(self.sweep.keys)]

    def document(self, seed: str) -> Doc:
        """One set of answers and its prompts, by length, then depth."""
        exercises = {depth: self.exercise(seed, depth or 0.0) for _, depth in self.cells()}
        answers = next(iter(exercises.values())).answers
        self.check_readable(answers)
        room = 2 * self.count(" " + ", ".join(answers), add_special_tokens=False)  # a generated answer may be longer
        prompts = [self.fitted(exercises[depth], length, room) for length, depth in self.cells()]
        tokens = [  # that each answer adds to a prompt and the answers before it
            max(1, self.count(prompts[0] + before + answer) - self.count(prompts[0] + before))
            for before, answer in continuations(answers)
        ]
        return {
            "name": seed, "prompts": prompts, "answers": list(answers), "target": ", ".join(answers),
            "tokens": tokens, "pinned": [exercises[depth].pinned for _, depth in self.cells()], "written": room,
        }  # fmt: skip

    def fitted(self, exercise: Notes, length: int, room: int) -> str:
        """The longest prompt that leaves room for its answers; ``room`` is the number of tokens to generate."""
        endings = [""] if self.generates else ["".join(parts) for parts in continuations(exercise.answers)]
        shortest = exercise.prompt(0)
        costs = [self.count(shortest + ending) for ending in endings]
        extra = max(costs) - costs[-1] + (room if self.generates else 0)  # more answers are nearly always more tokens

        def tokens(units: int) -> int:
            return self.count(exercise.prompt(units) + endings[-1]) + extra

        return exercise.prompt(most_units(tokens, length, self.name))

    def check_readable(self, answers: Sequence[str]) -> None:
        """Refuse a tokenizer that cannot represent the answers."""
        for answer in answers:
            ids = self.tokenizer(f" {answer}", add_special_tokens=False)["input_ids"]
            if not ids or self.tokenizer.unk_token_id in ids:
                raise TokenizerTooPoor(
                    f"The tokenizer reads the answer {answer!r} of {self.name} as its "
                    "unknown token. Use one that has every letter and digit."
                )

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Context and target for every answer in every cell; for generation, the prompt of every cell and arguments."""
        if self.generates:
            generation = {"max_gen_toks": doc["written"], **self.config.generation_kwargs}
            return [(prompt, dict(generation)) for prompt in doc["prompts"]]
        pairs = continuations(doc["answers"])
        return [(prompt + before, answer) for prompt in doc["prompts"] for before, answer in pairs]

    def process_results(self, doc: Doc, results: Sequence[Any]) -> dict[str, Any]:
        """Every metric at every length, over all answers and depths, and for the answer at each depth."""
        size = len(results) // len(self.cells())
        marks = [self.marks(doc, results[start : start + size]) for start in range(0, len(results), size)]
        pinned = [
            {metric: values[index] for metric, values in cell.items() if metric not in self.at_lengths}
            for cell, index in zip(marks, doc["pinned"], strict=True)
        ]
        lengths: list[Cell] = [(length, None) for length, _ in self.cells()]
        summaries = {"part": max}  # whether any answer occurs
        overall = [{name: float(summaries.get(name, mean)(values)) for name, values in cell.items()} for cell in marks]
        return named_scores(self.cells(), pinned) | named_scores(lengths, overall)

    def marks(self, doc: Doc, results: Sequence[Any]) -> Marks:
        """Values of every metric for every answer of one cell."""
        if self.generates:
            hits = [float(hit) for hit in string_matches(results[0], doc["answers"])]
            return {"match": hits, "part": hits}
        losses = [-score / tokens for (score, _), tokens in zip(results, doc["tokens"], strict=True)]
        return {"acc": [float(greedy) for _, greedy in results], "nll": losses}


class PasskeyTask(RetrievalTask):
    """posenc_passkey: one key, hidden in the user's text or else in the usual filler.

    Mohtashami, Jaggi 2023, "Landmark Attention", arXiv:2305.16300, section 4.2.
    """

    def documents(self) -> list[Doc]:
        """One key per document; the key is the name of the document."""
        documents = [self.document(f"{self.sweep.seed}-{sample}") for sample in range(self.sweep.keys)]
        return [doc | {"name": doc["target"]} for doc in documents]

    def exercise(self, seed: str, depth: float) -> Passkey:
        """The key of a sample, in filler."""
        rng = random.Random(seed)
        key = draw_key(rng)
        return Passkey(key, depth, from_random_start(self.own_sentences, rng) if self.own_sentences else FILLER)


def string_matches(text: str, answers: Sequence[str]) -> list[bool]:
    """Whether each answer occurs in ``text``, ignoring case: RULER's string match (arXiv:2404.06654, section 4)."""
    lowered = text.lower()
    return [answer.lower() in lowered for answer in answers]
