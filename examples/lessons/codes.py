"""Position embeddings of a scheme as models add them, for lessons on embeddings alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_posenc.errors import SchemeNotDefined
from hf_posenc.insight.properties import PropertyTarget, targets


def coded(scheme: str, **options: Any) -> PropertyTarget:
    """A scheme that adds codes to embeddings, 128 channels wide.

    Raises:
        SchemeNotDefined: it adds none.
    """
    found = targets(scheme, options)[0]
    if not found.has_codes:
        raise SchemeNotDefined(
            f"Scheme {scheme!r} adds no codes to embeddings. Name one that does, such as sinusoidal."
        )
    return found


def codes(target: PropertyTarget, positions: Tensor | int) -> Tensor:
    """Codes ``[n, width]``, float64, at ``positions [n]`` or at the first ``positions``."""
    positions = torch.arange(positions) if isinstance(positions, int) else positions
    found = target.codes(positions)
    assert found is not None
    return found
