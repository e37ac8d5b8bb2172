"""RULER's tasks for lm-eval, with our own generators; one class per task, options in the task's metadata.

Hsieh et al. 2024, "RULER", arXiv:2404.06654. Numbers are comparable with each other, not with RULER's.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.tasks.retrieval import RetrievalTask
from hf_posenc.eval.texts.common_words import CommonWords, FrequentWords
from hf_posenc.eval.texts.haystack import HAYSTACKS, OWN_TEXT
from hf_posenc.eval.texts.needles import CODE_KINDS, Niah
from hf_posenc.eval.texts.questions import Questions
from hf_posenc.eval.texts.variable_tracking import VariableTracking


class HaystackTask(RetrievalTask):
    """A task whose needles are hidden in filler: by default in the user's text, where one is given."""

    def haystack(self) -> dict[str, Any]:
        """The option ``haystack``, and the sentences it is made of."""
        kinds = (OWN_TEXT, *HAYSTACKS) if self.own_sentences else HAYSTACKS
        kind = self.options.one_of("haystack", kinds)
        self.reads_text = kind == OWN_TEXT
        return {"haystack": kind, "sentences": self.own_sentences}


class NiahTask(HaystackTask):
    """One needle. Options: ``haystack``, ``code_kind``."""

    shape: ClassVar[dict[str, tuple[int, int]]] = {}
    """Options that count: default and least value of each."""

    def exercise(self, seed: str, depth: float) -> Niah:
        """A set of needles, one of them at ``depth``."""
        counts: dict[str, Any] = {name: self.options.whole(name, *bounds) for name, bounds in self.shape.items()}
        kind = self.options.one_of("code_kind", tuple(CODE_KINDS))
        return Niah(seed, depth, **self.haystack(), code_kind=kind, **counts)


class MultiKeyTask(NiahTask):
    """One needle among others of its kind. Options: those of one needle, ``distractors``."""

    shape: ClassVar[dict[str, tuple[int, int]]] = {"distractors": (3, 1)}


class MultiValueTask(NiahTask):
    """All codes of one key. Options: those of one needle, ``codes``."""

    shape: ClassVar[dict[str, tuple[int, int]]] = {"codes": (4, 2)}


class MultiQueryTask(NiahTask):
    """The codes of several keys. Options: those of one needle, ``queries``."""

    shape: ClassVar[dict[str, tuple[int, int]]] = {"queries": (4, 2)}


class TracingTask(HaystackTask):
    """All names of a number. Options: ``hops``, ``chains``, ``haystack``."""

    deep = False

    def exercise(self, seed: str, depth: float) -> VariableTracking:
        """Chains of names."""
        hops, chains = self.options.whole("hops", 4), self.options.whole("chains", 2)
        return VariableTracking(seed, hops=hops, chains=chains, **self.haystack())


class CommonWordsTask(RetrievalTask):
    """The words that occur often. Options: ``common_words``, ``often``, ``rarely``."""

    deep = False
    reads_text = False

    def exercise(self, seed: str, depth: float) -> CommonWords:
        """A list with common words."""
        often, rarely = self.options.whole("often", 10), self.options.whole("rarely", 1)
        if often <= rarely:
            raise TaskOptionOutOfRange(f"often must be more than rarely, got {often} and {rarely}. Raise often.")
        return CommonWords(seed, count=self.options.whole("common_words", 5), often=often, rarely=rarely)


class FrequentWordsTask(RetrievalTask):
    """The most frequent words. Options: ``frequent_words``, ``zipf``."""

    deep = False
    reads_text = False

    def exercise(self, seed: str, depth: float) -> FrequentWords:
        """A text of ranked words."""
        return FrequentWords(
            seed, count=self.options.whole("frequent_words", 3, most=20), alpha=self.options.number("zipf", 2.0, 1, 3)
        )


class QuestionsTask(RetrievalTask):
    """A question over documents. Options: ``qa_hops``."""

    def exercise(self, seed: str, depth: float) -> Questions:
        """A question, its document at ``depth``."""
        return Questions(seed, depth, hops=self.options.whole("qa_hops", 1, most=2), sentences=self.own_sentences)
