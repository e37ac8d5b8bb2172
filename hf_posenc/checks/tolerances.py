"""Tolerances of the checks: one number for each check and dtype, and the known exceptions.

Deviations of outputs are in units of their standard deviation, at least 1. Checks that count, like ``unpatch``, have
tolerance 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

COUNT_TOLERANCE = 0.0
EFFECT_FACTOR = 100.0  # an effect must move outputs by this many times the model's own noise
NOISE_FLOOR = 1e-6  # noise of a deterministic model: a float32 rounding error, ten layers deep

# Kernels for other shapes sum a few hundred terms in another order, some ten roundings deep; scores are float32 even in
# float64 models.
LOGITS = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 3e-1}
LOGIT_CHECKS = (
    *("identity", "cache", "long_text", "cache_reorder", "padded_decoding", "batch", "padding", "packed", "backend"),
    *("torch_compile", "flex_attention", "formula", "shift", "distance", "far_positions", "cache_crop", "generate"),
    *("lora", "native_export", "position_ids", "custom_mask", "continuous_batching", "torch_export", "jit_trace"),
    "recompilation",
)

TOLERANCES: dict[str, dict[torch.dtype, float]] = {
    **dict.fromkeys(LOGIT_CHECKS, LOGITS),
    # Recomputation runs the same kernels on the same shapes; only the order of accumulation differs.
    "gradient_checkpointing": {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2},
    # Sums in another order through the forward and backward pass of two layers, relative to the largest entry.
    "formula_gradients": {torch.float64: 5e-4, torch.float32: 5e-4, torch.float16: 1e-1, torch.bfloat16: 5e-1},
    # The rule of FlashAttention's tests, with 1.5 instead of 2.
    "precision": dict.fromkeys(LOGITS, 1.5),
    # A future token has weight exactly zero, in kernels of the same shape.
    "causality": dict.fromkeys(LOGITS, 0.0),
    # The same kernels on the same shapes; kernels for one row round differently if weights are aligned differently.
    "offload": {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2},
    # The same kernels on the same shapes.
    **dict.fromkeys(("stateless", "training_mode", "configuration", "dtype_cast"), dict.fromkeys(LOGITS, 0.0)),
    # In half precision a small change of an option is below rounding.
    "options": {torch.float64: 0.0, torch.float32: 0.0, torch.float16: math.inf, torch.bfloat16: math.inf},
    # A wrong gradient is off by its own size; difference quotients by a tenth, from curvature and rounding.
    "finite_differences": {torch.float64: 0.3, torch.float32: 0.3, torch.float16: math.inf, torch.bfloat16: math.inf},
    # Required movement over measured movement.
    "effect": dict.fromkeys(LOGITS, 1.0),
}


@dataclass(frozen=True)
class KnownDeviation:
    """A known exception: a check that exceeds its usual tolerance for a scheme. The test suite prints them all.

    Attributes:
        check: name of the check.
        model: name of a tiny model, or ``*``.
        scheme: name of a scheme, alone or in a composition, or ``*``.
        tolerance: tolerance instead of the usual one.
        reason: why.
    """

    check: str
    model: str
    scheme: str
    tolerance: float
    reason: str

    def covers(self, check: str, model: str, scheme: str) -> bool:
        """Whether the exception applies to this check, model and scheme."""
        return check == self.check and self.model in ("*", model) and self.scheme in ("*", *scheme.split("+"))


GATES = "every token's gate contributes to the bias of all later ones; kernels sum in no fixed order"

SUMS = "its positions are sums of gates over keys, and so are their rounding errors, which differ between processors"

LARGE = "its embeddings grow with the position, and cancel digits of the token embeddings"

EVEN = "it adds the same number to every feature, which LayerNorm removes: use another `direction`"

SLOW = "no channel pair rotates often enough within the few tokens of this check for `beta_fast` to have an effect"

SUMMED = ("cache", "long_text", "formula", "lora", "position_ids", "custom_mask")
CANCELLED = ("cache", "long_text", "shift", "far_positions", "position_ids", "custom_mask")

KNOWN_DEVIATIONS: tuple[KnownDeviation, ...] = (
    KnownDeviation("position_effect", "*", "drope", 1, "without `keep_layers` it is `none`, with a training recipe"),
    *(KnownDeviation("position_effect", "*", scheme, 1, EVEN) for scheme in ("integer", "norm01")),
    *(KnownDeviation("options", "*", scheme, 1, SLOW) for scheme in ("yarn", "ntk_parts", "dynamic_yarn", "mrrope")),
    KnownDeviation("options", "*", "llama4_temp", 3, "it acts from 8,192 tokens on, past the tables of models"),
    KnownDeviation("options", "*", "mrope", 1, "`interleaved` orders several axes, and a text has one"),
    KnownDeviation(
        "finite_differences", "*", "kerple", math.inf,
        "parameters beyond their bounds keep a gradient that brings them back, as in the released code",
    ),
    KnownDeviation(
        "finite_differences", "*", "fire", math.inf,
        "its perturbed network is too steep for float32; tests/oracles/test_distance_biases.py tests its gradient",
    ),
    KnownDeviation(
        "finite_differences", "*", "sink_logits", math.inf,
        "its sink begins below the rounding of float32; tests/oracles/test_sink_logits.py has gpt-oss's gradients",
    ),
    *(KnownDeviation(check, "*", "cope", 1e-3, SUMS) for check in SUMMED),
    *(KnownDeviation(check, "*", "integer", 5e-3, LARGE) for check in CANCELLED),
    *(KnownDeviation("gradient_checkpointing", "*", scheme, 1e-4, GATES) for scheme in ("cable", "fox")),
)  # fmt: skip


def tolerance_of(check: str, dtype: torch.dtype, model: str, scheme: str) -> float:
    """Tolerance of a check, with exceptions; 0 for checks that count."""
    usual = TOLERANCES[check][dtype] if check in TOLERANCES else COUNT_TOLERANCE
    return max([usual, *(known.tolerance for known in KNOWN_DEVIATIONS if known.covers(check, model, scheme))])


@dataclass(frozen=True)
class Deviation:
    """Largest deviation that a check measured for a case.

    Compares by value with numbers and other deviations: ``assert deviation <= case.tolerance("cache"), deviation``.

    Attributes:
        check: name of the check.
        value: the largest deviation, in units of the check; NaN if a result was not finite.
        tolerance: the largest value that counts as rounding.
        where: description of the location of the largest deviation.
        command: shell command that measures it again.
        traceback: traceback of an exception in the check; empty if it measured a value.
    """

    check: str
    value: float
    tolerance: float
    where: str
    command: str
    traceback: str = field(default="", repr=False, compare=False)

    @property
    def failed(self) -> bool:
        """Whether the value exceeds the tolerance; NaN always fails."""
        return not self.value <= self.tolerance

    def __float__(self) -> float:
        return self.value

    def __lt__(self, other: Deviation | float) -> bool:
        return self.value < float(other)

    def __le__(self, other: Deviation | float) -> bool:
        return self.value <= float(other)

    def __gt__(self, other: Deviation | float) -> bool:
        return self.value > float(other)

    def __ge__(self, other: Deviation | float) -> bool:
        return self.value >= float(other)

    def __str__(self) -> str:
        verdict = "failed" if self.failed else "passed"
        return (
            f"{self.check} {verdict}: deviation {self.value:.2g}, tolerance {self.tolerance:.2g}, at {self.where}\n"
            f"  measure again: {self.command}"
        )
