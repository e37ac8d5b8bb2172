"""RULER's tasks for lm-eval, with generators of our own: one class per task, with options in the task's metadata.

Hsieh et al. 2024, "RULER", arXiv:2404.06654. Numbers can be compared with each other, not with those of RULER.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Interval

from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.tasks.retrieval import RetrievalOptions, RetrievalTask
from hf_posenc.eval.tasks.sweep import Few
from hf_posenc.eval.texts.haystack import OWN_TEXT, Notes
from hf_posenc.eval.texts.ruler import CommonWords, FrequentWords, Niah, Questions, VariableTracking

Several = Annotated[Few, Interval(ge=2)]


class HaystackTask(RetrievalTask):
    """A task whose needles are hidden in filler: by default in the user's text if there is one."""

    Options = RetrievalOptions.plus(haystack=(Literal["prose", "repeat", "needles", "text"], "prose"))
    made_of_text = True

    def defaults(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """By default, the user's text is the haystack."""
        return {"haystack": OWN_TEXT} if self.own_sentences else {}

    def exercise(self, seed: str, depth: float) -> Notes:
        """The exercise of a sample, in the haystack."""
        if self.options.haystack == OWN_TEXT and not self.own_sentences:
            raise TaskOptionOutOfRange("haystack is 'text', and no text is given. Pass one, or another haystack.")
        return super().exercise(seed, depth)


class NiahTask(HaystackTask):
    """One needle, whose code is asked for."""

    Options = HaystackTask.Options.plus(code_kind=(Literal["numbers", "words", "uuids"], "numbers"))
    make = Niah


class MultiKeyTask(NiahTask):
    """One needle among distractors: needles with other keys."""

    Options = NiahTask.Options.plus(distractors=(Few, 3))


class MultiValueTask(NiahTask):
    """Several needles with the same key; all its codes are asked for."""

    Options = NiahTask.Options.plus(codes=(Several, 4))


class MultiQueryTask(NiahTask):
    """Several needles with different keys; the codes of all keys are asked for."""

    Options = NiahTask.Options.plus(queries=(Several, 4))


class TracingTask(HaystackTask):
    """Variable tracking: all names that stand for one number."""

    deep = False
    Options = HaystackTask.Options.plus(hops=(Few, 4), chains=(Few, 2))
    make = VariableTracking


class CommonWordsTask(RetrievalTask):
    """Common words extraction: the words that occur more often than all others."""

    deep = False
    Options = RetrievalOptions.plus(common_words=(Few, 5), often=(Few, 10), rarely=(Few, 1))
    make = CommonWords

    def exercise(self, seed: str, depth: float) -> Notes:
        """A list with common words."""
        often, rarely = self.options.often, self.options.rarely
        if often <= rarely:
            raise TaskOptionOutOfRange(f"often must be more than rarely, got {often} and {rarely}. Raise often.")
        return super().exercise(seed, depth)


class FrequentWordsTask(RetrievalTask):
    """Frequent words extraction: the most frequent words, whose counts follow Zipf's law."""

    deep = False
    Options = RetrievalOptions.plus(
        frequent_words=(Annotated[Few, Interval(le=20)], 3), zipf=(Annotated[float, Interval(ge=1, le=3)], 2.0)
    )
    make = FrequentWords


class QuestionsTask(RetrievalTask):
    """A question about one or two of many documents."""

    Options = RetrievalOptions.plus(qa_hops=(Annotated[Few, Interval(le=2)], 1))
    make = Questions
    made_of_text = True
