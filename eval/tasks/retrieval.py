"""Base class of lm-eval tasks that retrieve fixed answers from prompts of a given length.

    scoring: forced       prompt + " a₁," → " a₂"      each answer after the right ones before it, one request each
    scoring: generate     prompt → text                RULER's string match

Forced, the default, needs no generation and no parsing: ``acc`` is the share of answers that greedy decoding would
write, every token of them, ``nll`` the nats/token, averaged over answers. Answers have a fixed order, given in the
question. `hf_posenc.eval.lm.scorer` makes one forward pass of a prompt's requests. Generated, ``match`` is the
share of answers found in the text and ``part`` whether any is.

``acc_L512`` is over all answers at all depths; ``acc_L512_D50`` is that of the one needle at that depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from lm_eval.api.metrics import mean

from hf_posenc.eval.errors import TokenizerTooPoor
from hf_posenc.eval.tasks.base import Cell, Doc, LengthSweep, Metric, named_scores
from hf_posenc.eval.tasks.sweep import TaskOptions
from hf_posenc.eval.texts.haystack import Notes, most_units

Marks = dict[str, list[float]]


def opened(answers: Sequence[str]) -> list[tuple[str, str]]:
    """The text before each answer, and the answer that continues it."""
    return [("".join(f" {done}," for done in answers[:index]), f" {answer}") for index, answer in enumerate(answers)]


class RetrievalOptions(TaskOptions):
    """How answers are scored: by teacher forcing, or in generated text."""

    scoring: Literal["forced", "generate"] = "forced"


class RetrievalTask(LengthSweep):
    """A task whose prompts hold fixed answers in as much filler as fits; subclasses define the exercise."""

    deep = True
    Options: ClassVar[type[TaskOptions]] = RetrievalOptions
    make: ClassVar[Callable[..., Notes]]
    """Makes an exercise of a seed, a depth if the task has one, and its own options."""
    made_of_text: ClassVar[bool] = False
    """Whether filler is made of the user's text, where one is given."""
    forced: ClassVar[dict[str, Metric]] = {"acc": (mean, True), "nll": (mean, False)}
    generated: ClassVar[dict[str, Metric]] = {"match": (mean, True), "part": (mean, True)}
    at_lengths: ClassVar[frozenset[str]] = frozenset({"part"})

    def __init__(self, config: dict[str, Any]) -> None:
        self.generates = RetrievalOptions.of(config["metadata"]).scoring == "generate"
        self.request_type = "generate_until" if self.generates else "loglikelihood"
        self.metrics = self.generated if self.generates else self.forced  # type: ignore[misc]
        super().__init__(config)
        self.OUTPUT_TYPE = self.request_type  # what lm-eval evens out over processes

    def exercise(self, seed: str, depth: float) -> Notes:
        """The exercise of a sample; ``depth`` is 0 where the task is not `deep`."""
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
        written = 2 * self.count(" " + ", ".join(answers), add_special_tokens=False)  # room for another wording
        prompts = [self.fitted(exercises[depth], length, written) for length, depth in self.cells()]
        return {
            "name": seed, "prompts": prompts, "answers": list(answers), "target": ", ".join(answers),
            "tokens": self.answer_tokens(prompts[0], answers),
            "pinned": [exercises[depth].pinned for _, depth in self.cells()], "written": written,
        }  # fmt: skip

    def fitted(self, exercise: Notes, length: int, written: int) -> str:
        """The longest prompt that leaves room for its answer."""
        endings = [""] if self.generates else ["".join(parts) for parts in opened(exercise.answers)]
        shortest = exercise.prompt(0)
        costs = [self.count(shortest + ending) for ending in endings]
        room = max(costs) - costs[-1] + (written if self.generates else 0)  # fewer answers are hardly ever more tokens

        def tokens(units: int) -> int:
            return self.count(exercise.prompt(units) + endings[-1]) + room

        return exercise.prompt(most_units(tokens, length, self.name))

    def answer_tokens(self, prompt: str, answers: Sequence[str]) -> list[int]:
        """How many tokens each answer adds to a prompt and the answers before it."""
        return [
            max(1, self.count(prompt + before + answer) - self.count(prompt + before))
            for before, answer in opened(answers)
        ]

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
        """Context and answer of every answer in every cell; or every cell's prompt, and how to generate."""
        if self.generates:
            how = {"max_gen_toks": doc["written"], **self.config.generation_kwargs}
            return [(prompt, dict(how)) for prompt in doc["prompts"]]
        return [(prompt + before, answer) for prompt in doc["prompts"] for before, answer in opened(doc["answers"])]

    def process_results(self, doc: Doc, results: Sequence[Any]) -> dict[str, Any]:
        """Every metric at every length, over all answers and depths; and for the answer at each depth."""
        size = len(results) // len(self.cells())
        marks = [self.marks(doc, results[start : start + size]) for start in range(0, len(results), size)]
        pinned = [
            {metric: some[index] for metric, some in found.items() if metric not in self.at_lengths}
            for found, index in zip(marks, doc["pinned"], strict=True)
        ]
        lengths: list[Cell] = [(length, None) for length, _ in self.cells()]
        summaries = {"part": max}  # whether any answer is found
        overall = [{name: float(summaries.get(name, mean)(some)) for name, some in found.items()} for found in marks]
        return named_scores(self.cells(), pinned) | named_scores(lengths, overall)

    def marks(self, doc: Doc, results: Sequence[Any]) -> Marks:
        """Every metric of every answer in one cell."""
        if self.generates:
            hits = [float(hit) for hit in found(results[0], doc["answers"])]
            return {"match": hits, "part": hits}
        losses = [-score / tokens for (score, _), tokens in zip(results, doc["tokens"], strict=True)]
        return {"acc": [float(greedy) for _, greedy in results], "nll": losses}


def found(text: str, answers: Sequence[str]) -> list[bool]:
    """Which answers occur in ``text``, ignoring case: RULER's string match (arXiv:2404.06654, section 4)."""
    lowered = text.lower()
    return [answer.lower() in lowered for answer in answers]
