"""Documents and numbers of lm-eval's RULER tasks, whose documents have several lengths.

Their metrics are called by the length alone, and are −1 for 4,096 where that was not requested. Here they are rows as
those of our own tasks are: RULER's string match, the share of the answers that occur in the text, at every length.

Hsieh et al. 2024, "RULER", arXiv:2404.06654.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from hf_posenc.eval.results.documents import DocumentScore, by_row, standard_error
from hf_posenc.eval.results.rows import Row

METRIC = "match"


def has_lengths(task: Any) -> bool:
    """Whether a loaded task has documents of several lengths, as RULER's have."""
    return not hasattr(task, "sweep") and {"max_length", "gen_prefix", "outputs"} <= set(getattr(task, "features", ()))


def first_of_each_length(task: Any, limit: int) -> list[int]:
    """Numbers of the first ``limit`` documents of each length; lm-eval's own limit takes those of the shortest."""
    seen: dict[int, list[int]] = defaultdict(list)
    for number, length in enumerate(task.eval_docs["max_length"]):
        seen[length].append(number)
    return [number for numbers in seen.values() for number in numbers[:limit]]


def room_needed(lm: Any, task: Any, chosen: Sequence[int] | None, **building: Any) -> int:
    """Tokens of the longest request of a task, with what it may generate.

    RULER's lengths count neither the opening of the answer nor, for frequent words, the answer.
    """
    task.build_all_requests(samples=chosen, rank=0, world_size=1, **building)
    new = int(task.config.generation_kwargs.get("max_gen_toks", lm.max_gen_toks))
    return new + max(len(lm.tok_encode(instance.args[0])) for instance in task.instances)


def ruler_documents(samples: Mapping[str, Sequence[Mapping[str, Any]]], tasks: Iterable[str]) -> list[DocumentScore]:
    """RULER's string match of every document, at the one length it has."""
    return [
        DocumentScore(task, number, number, length, None, METRIC, float(sample[str(length)]))
        for task in tasks
        for sample in samples[task]
        for number, length in [(str(sample["doc_id"]), int(sample["doc"]["max_length"]))]
    ]


def ruler_rows(documents: Sequence[DocumentScore], scheme: str, model: str) -> list[Row]:
    """Mean and standard error of RULER's string match at every length."""
    rows = []
    for (task, length, depth, metric), scores in by_row(documents).items():
        values = [score.value for score in scores]
        error, count = standard_error(values, [score.cluster for score in scores])
        rows.append(Row(model, scheme, task, length, depth, metric, fmean(values), error, len(values), count, True))
    return sorted(rows, key=lambda row: (row.task, row.length or 0))
