"""Ranks with an interval: every pair of lines is compared document by document, and all pairs are corrected together.

    first = 1 + lines that are surely better        last = lines − lines that are surely worse

With Holm's correction over all pairs of a table, all intervals of the table hold together in 95 %: Mogstad, Romano,
Shaikh, Wilhelm 2024, "Inference for Ranks with Applications to Mobility across Neighbourhoods and Academic Achievement
across Countries", Review of Economic Studies 91(1), section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

from hf_posenc.eval.results.documents import DocumentScore
from hf_posenc.eval.results.paired import LEVEL, holm, paired
from hf_posenc.insight.leaderboard.line import Rank


def ranks(scores: Mapping[str, Sequence[DocumentScore]], *, higher_is_better: bool) -> dict[str, Rank]:
    """Ranks of lines by the scores of their documents.

    Args:
        scores: of one metric at one length, over all depths, by label; all lines have the same documents.
        higher_is_better: of the metric.
    """
    pairs = [(a, b, paired(a, b, scores[a], scores[b])) for a, b in combinations(scores, 2)]
    corrected = holm([None if found is None else found.p for _, _, found in pairs])
    better: Counter[str] = Counter()
    worse: Counter[str] = Counter()
    for (a, b, found), p in zip(pairs, corrected, strict=True):
        if found is None or p is None or p >= LEVEL:
            continue
        winner, loser = (a, b) if (found.difference > 0) == higher_is_better else (b, a)
        better[loser] += 1
        worse[winner] += 1
    return {label: Rank(1 + better[label], len(scores) - worse[label], len(scores)) for label in scores}
