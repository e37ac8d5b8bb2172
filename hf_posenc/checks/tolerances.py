"""How much deviation is rounding: one number a check and dtype, and the exceptions by name.

Deviations of logits are in units of their standard deviation, at least 1. Checks that count, like ``unpatch``, allow 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

COUNTED = 0.0
EFFECT_FACTOR = 100.0  # what must show must move logits by this many times the model's own noise
NOISE_FLOOR = 1e-6  # noise of a model that repeats itself exactly: a rounding of float32, ten layers deep

# Kernels of other shapes add in another order, some ten roundings deep and a few hundred terms wide; scores are float32
# even where the model is float64.
LOGITS = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 3e-1}
SAME_MEANING = (
    *("identity", "cache", "long", "beams", "generation", "batch", "padding", "packed", "backend", "compiled", "flex"),
    *("formula", "shift", "distance", "far", "crop", "assisted", "adapters", "native", "positions", "mask"),
    *("continuous", "exported", "scripted", "lengths"),
)

TOLERANCES: dict[str, dict[torch.dtype, float]] = {
    **dict.fromkeys(SAME_MEANING, LOGITS),
    # Recomputation runs the same kernels on the same shapes; what is left is the order of accumulation.
    "checkpointing": {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2},
    # Two ways to the same derivative: sums of other orders through two layers forth and back, of the largest entry.
    "derivatives": {torch.float64: 5e-4, torch.float32: 5e-4, torch.float16: 1e-1, torch.bfloat16: 5e-1},
    # Flash attention's rule, with a stricter factor than its 2: one rounding less at the end is all there is to lose.
    "precision": dict.fromkeys(LOGITS, 1.5),
    # A token of the future is multiplied by an exact zero, in kernels of the same shape.
    "causality": dict.fromkeys(LOGITS, 0.0),
    # The same kernels on the same shapes; of weights aligned otherwise in memory those for one row round anew.
    "offload": {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2},
    # The same kernels on the same shapes.
    **dict.fromkeys(("memoryless", "modes", "configuration", "cast"), dict.fromkeys(LOGITS, 0.0)),
    # A small option is less than a rounding.
    "options": {torch.float64: 0.0, torch.float32: 0.0, torch.float16: math.inf, torch.bfloat16: math.inf},
    # A wrong gradient is off by its own size; secants of a curved loss, and of a rounded one, by a tenth.
    "secant": {torch.float64: 0.3, torch.float32: 0.3, torch.float16: math.inf, torch.bfloat16: math.inf},
    # Movement wanted over movement seen.
    "effect": dict.fromkeys(LOGITS, 1.0),
}


@dataclass(frozen=True)
class KnownLimit:
    """One exception, with its reason; the test suite prints them all.

    Attributes:
        check: name of the check.
        model: name of the host, or ``*``.
        scheme: a scheme, alone or in a composition, or ``*``.
        limit: what is allowed instead.
        reason: why.
    """

    check: str
    model: str
    scheme: str
    limit: float
    reason: str

    def covers(self, check: str, model: str, scheme: str) -> bool:
        """Whether the exception is for this check and pair."""
        return check == self.check and self.model in ("*", model) and self.scheme in ("*", *scheme.split("+"))


GATES = "every token's gate has a share in the bias of all later ones; kernels add those in no fixed order, 1e-5 apart"

SUMS = "its places are sums of gates, one a key: so are their roundings, and processors round in other orders"

LARGE = "its codes grow with the position, and push digits out of what they are added to"

EVEN = "the same number added to every feature is what LayerNorm takes away: ask for another `direction`"

SLOW = "no pair turns often enough within the few tokens of this check for `beta_fast` to pass one over"

KNOWN_LIMITS: tuple[KnownLimit, ...] = (
    KnownLimit("says", "*", "drope", 1, "without `keep_layers` it is `none`, and a recipe for getting there"),
    KnownLimit("says", "*", "integer", 1, EVEN),
    KnownLimit("says", "*", "norm01", 1, EVEN),
    KnownLimit("options", "*", "yarn", 1, SLOW),
    KnownLimit("options", "*", "ntk_parts", 1, SLOW),
    KnownLimit("options", "*", "llama4_temp", 3, "it acts from 8,192 tokens on, where tables of hosts end"),
    KnownLimit("options", "*", "mrope", 1, "`interleaved` tells apart axes that a text, which has one, does not show"),
    KnownLimit(
        "secant", "*", "kerple", math.inf,
        "numbers beyond their bounds keep the gradient that brings them back, as in the released code",
    ),
    KnownLimit(
        "secant", "*", "fire", math.inf,
        "its network, stirred, is steeper than float32 can show; tests/oracles/test_fire.py has its gradient",
    ),
    KnownLimit("cache", "*", "cope", 1e-3, SUMS),
    KnownLimit("long", "*", "cope", 1e-3, SUMS),
    KnownLimit("formula", "*", "cope", 1e-3, SUMS),
    KnownLimit("adapters", "*", "cope", 1e-3, SUMS),
    KnownLimit("positions", "*", "cope", 1e-3, SUMS),
    KnownLimit("mask", "*", "cope", 1e-3, SUMS),
    KnownLimit("cache", "*", "integer", 5e-3, LARGE),
    KnownLimit("long", "*", "integer", 5e-3, LARGE),
    KnownLimit("shift", "*", "integer", 5e-3, LARGE),
    KnownLimit("far", "*", "integer", 5e-3, LARGE),
    KnownLimit("positions", "*", "integer", 5e-3, LARGE),
    KnownLimit("mask", "*", "integer", 5e-3, LARGE),
    KnownLimit("checkpointing", "*", "cable", 1e-4, GATES),
    KnownLimit("checkpointing", "*", "fox", 1e-4, GATES),
)  # fmt: skip


def tolerance_of(check: str, dtype: torch.dtype, model: str, scheme: str) -> float:
    """The limit of a check for a pair, an exception where there is one; 0 for checks that count."""
    usual = TOLERANCES[check][dtype] if check in TOLERANCES else COUNTED
    return max([usual, *(known.limit for known in KNOWN_LIMITS if known.covers(check, model, scheme))])
