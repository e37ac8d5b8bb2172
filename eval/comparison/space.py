"""Disk space that a comparison needs, checked before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PAGE = 1 << 16
"""Bytes of the results without cells."""
EACH = 1 << 14
"""Bytes of a cell: its row of the store, and its share of the files before and after they are replaced. Measured: 9,000
for passkey retrieval at five depths, less for others."""
SCORE = 600
"""Bytes of the score of a document: in the store, and in ``documents.jsonl`` before and after it is replaced."""


def space_of(cells: int, measure: Mapping[str, Any]) -> int:
    """Bytes that ``cells`` cells need at most, where a document has two metrics at every depth and over all of them."""
    scores = 2 * max(measure["samples"], measure["keys"]) * (1 + len(measure["depths"]))
    return PAGE + cells * (EACH + SCORE * scores)
