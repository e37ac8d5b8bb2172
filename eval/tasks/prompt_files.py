"""Tasks of published benchmarks from local copies: RULER's and BABILong's prompts, LongBench v2's questions.

A prompt of fixed length counts at the length L where it has, with its answer, more than L / 2 and at most L tokens:
that does not depend on the other lengths. As many are measured at every length.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.eval.errors import LengthTooShort
from hf_posenc.eval.tasks.base import Doc
from hf_posenc.eval.tasks.choice import ChoiceTask
from hf_posenc.eval.tasks.retrieval import Marks, RetrievalTask, opened
from hf_posenc.eval.tasks.sweep import metric_name
from hf_posenc.eval.texts.fit_length import Exercise
from hf_posenc.eval.texts.local_records import Record, local_records
from hf_posenc.eval.texts.prompt_files import LongBenchQuestion, Prompt, babilong_prompt, ruler_prompt


class PromptFileTask(RetrievalTask):
    """Prompts of a file as they are, by their length. Options: ``data``."""

    deep = False
    reads_text = False
    example: ClassVar[str]

    def parse(self, record: Record, place: str) -> Prompt:
        """The prompt of a record."""
        raise NotImplementedError

    def documents(self) -> list[Doc]:
        """Sets of prompts, one of each length.

        Raises:
            LengthTooShort: no prompt is of one of the lengths.
        """
        by_length: dict[int, list[Prompt]] = {length: [] for length in self.sweep.lengths}
        sizes = []
        for place, record in local_records(self.options.paths("data"), self.name, self.example):
            prompt = self.parse(record, place)
            sizes.append(self.tokens_of(prompt))
            for length, some in by_length.items():
                if length / 2 < sizes[-1] <= length and len(some) < self.sweep.keys:
                    some.append(prompt)
        for length, some in by_length.items():
            if not some:
                raise LengthTooShort(
                    f"None of the {len(sizes)} prompts of {self.name} has more than {length // 2} and at most {length} "
                    f"tokens; they have {min(sizes, default=0)} to {max(sizes, default=0)}. Ask for such a length."
                )
        count = min(map(len, by_length.values()))
        self.config.metadata |= {"prompts": {"read": len(sizes), "used": count}}
        return [self.set_of([by_length[length][number] for length in by_length], number) for number in range(count)]

    def tokens_of(self, prompt: Prompt) -> int:
        """Tokens of a prompt with its answers."""
        return self.count(prompt.text) + self.room(prompt)

    def room(self, prompt: Prompt) -> int:
        """Tokens for the answers; twice as many where they are generated, for another wording."""
        written = self.count(" " + ", ".join(prompt.answers), add_special_tokens=False)
        return 2 * written if self.generates else written

    def set_of(self, prompts: Sequence[Prompt], number: int) -> Doc:
        """One prompt of each length."""
        for prompt in prompts:
            self.check_readable(prompt.answers)
        return {
            "name": f"prompt {number}", "prompts": [prompt.text for prompt in prompts],
            "answers": [list(prompt.answers) for prompt in prompts],
            "target": "; ".join(", ".join(prompt.answers) for prompt in prompts),
            "tokens": [self.answer_tokens(prompt.text, prompt.answers) for prompt in prompts],
            "written": [self.room(prompt) for prompt in prompts],
        }  # fmt: skip

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Context and answer of every answer of every prompt; or every prompt, and how to generate."""
        if self.generates:
            how = self.config.generation_kwargs
            return [(p, {"max_gen_toks": new, **how}) for p, new in zip(doc["prompts"], doc["written"], strict=True)]
        pairs = zip(doc["prompts"], doc["answers"], strict=True)
        return [(prompt + before, answer) for prompt, answers in pairs for before, answer in opened(answers)]

    def scores(self, doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        """Every metric at every length."""
        values: dict[str, float] = {}
        left = list(results)
        for length, answers, tokens in zip(self.sweep.lengths, doc["answers"], doc["tokens"], strict=True):
            size = 1 if self.generates else len(answers)
            some, left = left[:size], left[size:]
            marks = self.marks({"answers": answers, "tokens": tokens}, some)
            values |= {metric_name(metric, length): self.summary(metric, marks) for metric in marks}
        return values

    def summary(self, metric: str, marks: Marks) -> float:
        """One number of the answers' marks."""
        return float(max(marks[metric]) if metric == "part" else mean(marks[metric]))


class RulerFileTask(PromptFileTask):
    """RULER's own prompts."""

    example = '{"input": "…", "outputs": ["…"]}'

    def parse(self, record: Record, place: str) -> Prompt:
        """The prompt of a record."""
        return ruler_prompt(record, place)


class BabilongTask(PromptFileTask):
    """BABILong's own prompts."""

    example = '{"input": "…", "question": "…", "target": "…"}'

    def parse(self, record: Record, place: str) -> Prompt:
        """The prompt of a record."""
        return babilong_prompt(record, place)


class LongBenchTask(ChoiceTask):
    """LongBench v2's questions, their texts cut in the middle to every length. Options: ``data``."""

    deep = False
    reads_text = False

    @cached_property
    def questions(self) -> list[LongBenchQuestion]:
        """The first ``keys`` questions of the files."""
        example = '{"context", "question", "choice_A", …, "choice_D", "answer"}'
        records = local_records(self.options.paths("data"), self.name, example)
        return [LongBenchQuestion(record, place) for _, (place, record) in zip(range(self.sweep.keys), records)]  # noqa: B905

    def documents(self) -> list[Doc]:
        """One question per document, its text cut to every length; the results tell how many were cut."""
        found = [self.document(f"{self.name}-{number}") for number in range(len(self.questions))]
        uncut = [question.prompt(len(question.pieces)) for question in self.questions]
        cut = {
            str(length): sum(doc["prompts"][number] != whole for doc, whole in zip(found, uncut, strict=True))
            for number, length in enumerate(self.sweep.lengths)
        }
        self.config.metadata |= {"questions": len(found), "cut": cut}
        return found

    def exercise(self, seed: str, depth: float) -> LongBenchQuestion:
        """The question whose number ends the seed."""
        return self.questions[int(seed.rpartition("-")[2])]

    def fitted(self, exercise: Exercise, length: int, written: int) -> str:
        """The whole prompt where it fits; else the longest cut one that does."""
        whole = exercise.prompt(2**31)
        room = written if self.generates else self.count(f" {exercise.answers[0]}", add_special_tokens=False)
        return whole if self.count(whole) + room <= length else super().fitted(exercise, length, written)
