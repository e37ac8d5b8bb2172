"""Tasks of published benchmarks from local copies: RULER's and BABILong's prompts, LongBench v2's questions.

    RULER          {"input": "…", "outputs": ["…"], "answer_prefix": "…"}              as its scripts write them
    BABILong       {"input": "…", "question": "…", "target": "…"}                       of its splits 0k, 1k, 2k, …
    LongBench v2   {"context", "question", "choice_A", …, "choice_D", "answer": "A"}

A prompt of fixed length counts at the length L where it has, with its answer, more than L / 2 and at most L tokens:
that does not depend on the other lengths. As many are measured at every length.

Hsieh et al. 2024, "RULER", arXiv:2404.06654; Kuratov et al. 2024, "BABILong", arXiv:2406.10149; Bai et al. 2024,
"LongBench v2", arXiv:2412.15204.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Literal

from pydantic import AliasChoices, Field

from hf_posenc.eval.errors import LengthTooShort
from hf_posenc.eval.tasks.base import Doc
from hf_posenc.eval.tasks.choice import ChoiceTask
from hf_posenc.eval.tasks.retrieval import FileOptions, Record, RetrievalTask, Text, Texts, local_records
from hf_posenc.eval.texts.haystack import Exercise

BABILONG = "{input}\n\nQuestion: {question}\nAnswer:"
LONGBENCH = (
    "Please read the following text and answer the question below.\n\n<text>\n{context}\n</text>\n\n"
    "What is the correct answer to this question: {question}\nChoices:\n(A) {choice_A}\n(B) {choice_B}\n"
    "(C) {choice_C}\n(D) {choice_D}\n\nThe correct answer is"
)
PIECE = re.compile(r"\S+\s*|\s+")


class RulerPrompt(Record):
    """A prompt of RULER's, and the answers that continue it; its opening is joined to it where a file has it apart."""

    input: Text
    answers: Texts = Field(validation_alias=AliasChoices("outputs", "output"))
    prefix: str | None = Field(None, validation_alias=AliasChoices("answer_prefix", "gen_prefix"))

    @property
    def text(self) -> str:
        """The prompt, and the opening of its answer."""
        text, prefix = self.input.rstrip(), (self.prefix or "").strip()
        return text if not prefix or text.endswith(prefix) else f"{text} {prefix}"


class BabilongPrompt(Record):
    """A prompt of BABILong's: text, question, and the opening of the answer; and the answer."""

    input: Text
    question: Text
    answers: Texts = Field(validation_alias="target")

    @property
    def text(self) -> str:
        """The text, the question, and the opening of its answer."""
        return BABILONG.format(input=self.input.strip(), question=self.question.strip())


Prompt = RulerPrompt | BabilongPrompt
"""A prompt of a file, and the answers that continue it, separated by commas."""


class PromptFileTask(RetrievalTask):
    """Prompts of a file as they are, by their length."""

    deep = False
    reads_text = False
    Options = FileOptions
    prompt: ClassVar[type[RulerPrompt] | type[BabilongPrompt]]

    def documents(self) -> list[Doc]:
        """Sets of prompts, one of each length."""
        prompts = list(local_records(self.options.data, self.name, self.prompt))
        sizes = [self.count(prompt.text) + self.room(prompt) for prompt in prompts]
        found: list[list[Prompt]] = []
        for length in self.sweep.lengths:
            fitting = (prompt for prompt, size in zip(prompts, sizes, strict=True) if length / 2 < size <= length)
            found.append(list(islice(fitting, self.sweep.keys)))
            if not found[-1]:
                raise LengthTooShort(
                    f"None of the {len(sizes)} prompts of {self.name} has more than {length // 2} and at most {length} "
                    f"tokens; they have {min(sizes, default=0)} to {max(sizes, default=0)}. Ask for such a length."
                )
        documents = [self.set_of(prompts, number) for number, prompts in enumerate(zip(*found, strict=False))]
        self.config.metadata |= {"prompts": {"read": len(sizes), "used": len(documents)}}
        return documents

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

    def single(self, doc: Doc) -> list[Doc]:
        """The document as one of each length alone."""
        fields = ("prompts", "answers", "tokens", "written")
        return [
            {"prompts": [prompt], "answers": answers, "tokens": tokens, "written": written, "pinned": [0]}
            for prompt, answers, tokens, written in zip(*(doc[field] for field in fields), strict=True)
        ]

    def arguments(self, doc: Doc) -> list[tuple[Any, ...]]:
        """Context and answer of every answer of every prompt; or every prompt, and how to generate."""
        single = super().arguments
        return [arguments for one in self.single(doc) for arguments in single(one)]

    def process_results(self, doc: Doc, results: Sequence[Any]) -> dict[str, Any]:
        """Every metric at every length."""
        left = iter(results)
        marks = [
            self.marks(one, list(islice(left, 1 if self.generates else len(one["answers"]))))
            for one in self.single(doc)
        ]
        return self.named(marks)


class RulerFileTask(PromptFileTask):
    """RULER's own prompts."""

    prompt = RulerPrompt


class BabilongTask(PromptFileTask):
    """BABILong's own prompts."""

    prompt = BabilongPrompt


class LongBenchQuestion(Record):
    """A question of LongBench v2 with four choices; a text that is too long loses its middle, as published."""

    context: Text
    question: Text
    choice_A: Text
    choice_B: Text
    choice_C: Text
    choice_D: Text
    answer: Literal["A", "B", "C", "D"]

    pinned: ClassVar[int] = 0
    choices: ClassVar[tuple[str, ...]] = ("A", "B", "C", "D")

    @property
    def answers(self) -> tuple[str, ...]:
        """The right letter."""
        return (self.answer,)

    @cached_property
    def pieces(self) -> list[str]:
        """The words of the text, with the white space behind each."""
        return PIECE.findall(self.context.strip())

    def prompt(self, units: int) -> str:
        """The prompt with ``units`` words of the text, half of them from its end."""
        pieces = self.pieces
        if units < len(pieces):
            pieces = [*pieces[: units - units // 2], *pieces[len(pieces) - units // 2 :]]
        return LONGBENCH.format(**dict(self) | {"context": "".join(pieces)})


class LongBenchTask(ChoiceTask):
    """LongBench v2's questions, their texts cut in the middle to every length."""

    deep = False
    reads_text = False
    Options = FileOptions

    @cached_property
    def questions(self) -> list[LongBenchQuestion]:
        """The first ``keys`` questions of the files."""
        return list(islice(local_records(self.options.data, self.name, LongBenchQuestion), self.sweep.keys))

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
