"""RULER's tasks for lm-eval, with our own generators; one class per task, options in the task's metadata.

Hsieh et al. 2024, "RULER", arXiv:2404.06654. Numbers are comparable with each other, not with RULER's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.tasks.retrieval import RetrievalOptions, RetrievalTask
from hf_posenc.eval.tasks.sweep import Few
from hf_posenc.eval.texts.fit_length import Exercise
from hf_posenc.eval.texts.haystack import OWN_TEXT
from hf_posenc.eval.texts.needles import Niah
from hf_posenc.eval.texts.ruler import CommonWords, FrequentWords, Questions, VariableTracking

Several = Annotated[Few, Field(ge=2)]


class HaystackOptions(RetrievalOptions):
    """What needles are hidden in."""

    haystack: Literal["prose", "repeat", "needles", "text"] = "prose"


class HaystackTask(RetrievalTask):
    """A task whose needles are hidden in filler: by default in the user's text, where one is given."""

    Options = HaystackOptions
    made_of_text = True

    @property
    def reads_text(self) -> bool:  # type: ignore[override]
        """Whether a text that is given is read."""
        return bool(self.options.haystack == OWN_TEXT)

    def defaults(self) -> dict[str, Any]:
        """The user's text as a haystack."""
        return {"haystack": OWN_TEXT} if self.own_sentences else {}

    def exercise(self, seed: str, depth: float) -> Exercise:
        """The exercise of a sample, in the haystack.

        Raises:
            TaskOptionOutOfRange: the haystack is a text, and none is given.
        """
        if self.reads_text and not self.own_sentences:
            raise TaskOptionOutOfRange("haystack is 'text', and no text is given. Pass one, or another haystack.")
        return super().exercise(seed, depth)


class NiahTask(HaystackTask):
    """One needle."""

    class Options(HaystackOptions):
        """Form of the codes."""

        code_kind: Literal["numbers", "words", "uuids"] = "numbers"

    make = Niah


class MultiKeyTask(NiahTask):
    """One needle among others of its kind."""

    class Options(NiahTask.Options):
        """Keys with a code that are not asked for."""

        distractors: Few = 3


class MultiValueTask(NiahTask):
    """All codes of one key."""

    class Options(NiahTask.Options):
        """Codes of the key."""

        codes: Several = 4


class MultiQueryTask(NiahTask):
    """The codes of several keys."""

    class Options(NiahTask.Options):
        """Keys that are asked for."""

        queries: Several = 4


class TracingTask(HaystackTask):
    """All names of a number."""

    class Options(HaystackOptions):
        """Steps of a chain of names, and number of chains."""

        hops: Few = 4
        chains: Few = 2

    deep = False
    make = VariableTracking


class CommonWordsTask(RetrievalTask):
    """The words that occur often."""

    class Options(RetrievalOptions):
        """Words that are asked for, how often each comes, and how often the others."""

        common_words: Few = 5
        often: Few = 10
        rarely: Few = Field(1, validate_default=True)

        @field_validator("rarely")
        @classmethod
        def less_than_often(cls, rarely: int, info: ValidationInfo) -> int:
            """Refuse words that cannot be told apart by how often they come."""
            often = info.data.get("often", rarely + 1)
            if often <= rarely:
                raise TaskOptionOutOfRange(f"often must be more than rarely, got {often} and {rarely}. Raise often.")
            return rarely

    deep = False
    reads_text = False
    make = CommonWords


class FrequentWordsTask(RetrievalTask):
    """The most frequent words."""

    class Options(RetrievalOptions):
        """Words that are asked for, and the exponent by which words become rare."""

        frequent_words: Annotated[Few, Field(le=20)] = 3
        zipf: Annotated[float, Field(ge=1, le=3)] = 2.0

    deep = False
    reads_text = False
    make = FrequentWords


class QuestionsTask(RetrievalTask):
    """A question over documents."""

    class Options(RetrievalOptions):
        """Documents that the answer needs."""

        qa_hops: Annotated[Few, Field(le=2)] = 1

    make = Questions
    made_of_text = True
