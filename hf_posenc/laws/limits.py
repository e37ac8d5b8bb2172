"""How much deviation is rounding: one number a law and dtype, and the exceptions by name.

Deviations of logits are in units of their standard deviation, at least 1. Laws that count, like ``unpatch``, allow 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

COUNTED = 0.0

# Kernels of other shapes add in another order, some ten roundings deep and a few hundred terms wide; scores are float32
# even where the model is float64.
LOGITS = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 3e-1}
SAME_MEANING = ("identity", "cache", "beams", "generation", "batch", "padding", "packed", "backend", "compiled")

LIMITS: dict[str, dict[torch.dtype, float]] = {
    **dict.fromkeys(SAME_MEANING, LOGITS),
    # Recomputation runs the same kernels on the same shapes; what is left is the order of accumulation.
    "checkpointing": {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2},
    # A token of the future is multiplied by an exact zero, in kernels of the same shape.
    "causality": dict.fromkeys(LOGITS, 0.0),
    # Movement wanted over movement seen.
    "effect": dict.fromkeys(LOGITS, 1.0),
}


@dataclass(frozen=True)
class KnownLimit:
    """One exception, with its reason; the test suite prints them all.

    Attributes:
        law: name of the law.
        model: name of the host, or ``*``.
        scheme: a scheme, alone or in a composition, or ``*``.
        limit: what is allowed instead.
        reason: why.
    """

    law: str
    model: str
    scheme: str
    limit: float
    reason: str

    def covers(self, law: str, model: str, scheme: str) -> bool:
        """Whether the exception is for this law and pair."""
        return law == self.law and self.model in ("*", model) and self.scheme in ("*", *scheme.split("+"))


GATES = "every token's gate has a share in the bias of all later ones; kernels add those in no fixed order, 1e-5 apart"

KNOWN_LIMITS: tuple[KnownLimit, ...] = (
    KnownLimit("checkpointing", "*", "cable", 1e-4, GATES),
    KnownLimit("checkpointing", "*", "fox", 1e-4, GATES),
    KnownLimit(
        "compiled", "*", "dynamic_ntk", math.inf,
        "rows are grouped by the length they stand at, which a graph cannot know; it runs where a graph may break",
    ),
    KnownLimit(
        "compiled", "bert", "longrope", math.inf,
        "an encoder's rotation depends on the length of its text; a decoder's does not, and compiles",
    ),
)  # fmt: skip


def limit_of(law: str, dtype: torch.dtype, model: str, scheme: str) -> float:
    """The limit of a law for a pair, an exception where there is one; 0 for laws that count."""
    usual = LIMITS[law][dtype] if law in LIMITS else COUNTED
    return max([usual, *(known.limit for known in KNOWN_LIMITS if known.covers(law, model, scheme))])
