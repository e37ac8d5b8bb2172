"""Positions that depend on content, on two tasks in which the distance in tokens is irrelevant."""

from __future__ import annotations

from itertools import product

from laboratory.tiny import from_scratch
from verdict import Finding, Metric, better, main

SHIFTS = (0.5, 2.0)
TASKS = ("selective_copying", "flip_flop")
FULL = {
    "selective_copying": {"trained": 16, "steps": 1000, "batch": 32, "learning_rate": 2e-3},
    "flip_flop": {"trained": 4, "steps": 600, "batch": 32, "learning_rate": 2e-3},
}
SCORES = {name: (name, "tokens") for name in TASKS}

FINDING = Finding(
    claim="On selective copying and flip-flop, CoPE and FoX answer more tokens right than RoPE, within the "
    "trained distances and where what counts stands half or twice as far apart.",
    source="Golovneva et al. 2024, arXiv:2405.18719, sections 5.1 and 5.2 (CoPE); Lin et al. 2025, "
    "arXiv:2503.02130, section 3 (FoX, which the paper does not test on these tasks)",
    against="CoPE or FoX answers surely fewer tokens right than RoPE in one of the tasks, at the trained "
    "distances or at half or twice as long ones.",
    limits="Models of 0.1 M weights, 22 tokens to copy from and 24 instructions; the paper has 256 blanks and 512 "
    "tokens. No accuracy is required of RoPE at the trained distances.",
    variants={"cope": "cope", "fox": "fox", "rope": "rope"},
    points=(0.5, 1.0, 2.0),
    metrics=tuple(Metric(name, "share", True) for name in TASKS),
    claims=tuple(
        better(scheme, "rope", at, metric=name) for name, scheme, at in product(TASKS, ("cope", "fox"), (1.0, *SHIFTS))
    ),
    full={"seeds": 4, "tasks": FULL, "scores": SCORES},
    quick={"seeds": 1, "tasks": {name: settings | {"steps": 60} for name, settings in FULL.items()}},
    measure=from_scratch,
)

if __name__ == "__main__":
    main(FINDING)
