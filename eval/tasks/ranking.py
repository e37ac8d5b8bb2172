"""posenc_rerank: put the relevant documents in order."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from lm_eval.api.metrics import mean

from hf_posenc.eval.tasks.base import Doc, Metric
from hf_posenc.eval.tasks.retrieval import FORCED, Marks, RetrievalTask
from hf_posenc.eval.texts.local_records import local_records
from hf_posenc.eval.texts.ranking import EXAMPLE, Query, Ranking, generated, ndcg

NUMBER = re.compile(r"\d+")


class RankingTask(RetrievalTask):
    """The numbers of the relevant documents. Options: ``relevant``; ``data`` for queries of local files.

    Forced, each number after the right ones before it; generated, NDCG@10 of the numbers in the text.
    """

    reads_text = False
    generated: ClassVar[dict[str, Metric]] = {"ndcg": (mean, True)}
    metrics: ClassVar[dict[str, Metric]] = FORCED | generated

    @cached_property
    def queries(self) -> list[Query]:
        """The queries of local files; none without."""
        given = self.options.paths("data")
        found = (
            [Query.of_record(record, place) for place, record in local_records(given, self.name, EXAMPLE)]
            if given
            else []
        )
        return random.Random(f"{self.name}-{self.sweep.seed}").sample(found, len(found))

    def documents(self) -> list[Doc]:
        """One query per document: ``keys`` generated ones, or as many of the file's, in random order."""
        count = min(self.sweep.keys, len(self.queries) or self.sweep.keys)
        return [self.document(f"{self.name}-{self.sweep.seed}-{sample}") for sample in range(count)]

    def document(self, seed: str) -> Doc:
        """One query at every length and depth, with the grades of its documents."""
        return super().document(seed) | {"grades": list(self.exercise(seed, 0.0).grades.values())}

    def exercise(self, seed: str, depth: float) -> Ranking:
        """A query, its most relevant document at ``depth``."""
        relevant = self.options.whole("relevant", 3, most=10)
        if not self.queries:
            return Ranking(seed, depth, generated(seed, relevant), relevant=relevant)
        query = self.queries[int(seed.rpartition("-")[2])]
        pool = [text for other in self.queries if other is not query for text, _ in other.graded]
        return Ranking(seed, depth, query, pool, relevant)

    def marks(self, doc: Doc, results: Sequence[Any]) -> Marks:
        """As for other tasks; of a generated text, NDCG@10 of its numbers."""
        if not self.generates:
            return super().marks(doc, results)
        ranked = list(dict.fromkeys(NUMBER.findall(results[0])))
        return {"ndcg": [ndcg(ranked, dict(zip(doc["answers"], doc["grades"], strict=True)))] * len(doc["answers"])}
