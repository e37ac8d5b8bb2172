"""Share forward passes between requests where one is a prefix of the other.

    A    prompt → " a₁"            B    prompt " a₁," → " a₂"            the pass of B covers all of A

Valid only where a token's score depends on the tokens before it alone; the caller checks that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Row = tuple[int, ...]
TokenRequest = tuple[Any, list[int], list[int]]


def carriers(rows: Mapping[Row, Sequence[int]], requests: Sequence[TokenRequest]) -> dict[Row, Row]:
    """Map each sequence that is a prefix of others to the longest of these.

    Args:
        rows: input sequences, with the numbers of the requests they answer.
        requests: name, context and target of each.
    """
    found: dict[Row, Row] = {}
    for row, after in reversed(list(pairwise(sorted(rows)))):  # sorting puts common prefixes next to each other
        if after[: len(row)] == row and goes_on(requests, rows[row], rows[after]):
            found[row] = found.get(after, after)
    return found


def goes_on(requests: Sequence[TokenRequest], earlier: Sequence[int], later: Sequence[int]) -> bool:
    """Whether the later contexts hold the earlier targets.

    Two targets for one context, such as the choices of a question, do not go on from each other, even where one begins
    with the other: they keep a pass each, and with it the very numbers of lm-eval.
    """
    longest = max(len(requests[number][1]) + len(requests[number][2]) for number in earlier)
    return all(len(requests[number][1]) >= longest for number in later)
