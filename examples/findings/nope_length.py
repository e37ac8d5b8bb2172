"""Decoders without positions on copies, sums and sorted lists that are longer than those in training."""

from __future__ import annotations

from itertools import product

from laboratory.tiny import from_scratch
from verdict import Finding, Metric, able, better, main

TASKS = ("copy", "addition", "sorting")
SCHEMES = ("none", "rope", "alibi")
FULL = {
    "copy": {"trained": 8, "steps": 2000, "batch": 32, "learning_rate": 2e-3},
    "addition": {"trained": 4, "steps": 8000, "batch": 32, "learning_rate": 2e-3},
    "sorting": {"trained": 8, "steps": 1500, "batch": 32, "learning_rate": 2e-3},
}
SCORES = {name: (name, "tokens") for name in TASKS}
LEARNED = 0.9
LOST = 0.1

FINDING = Finding(
    claim="On copying, addition and sorting, a decoder without positional encodings generalises to half as long "
    "again better than one with RoPE or ALiBi; at twice the trained length it has lost part of that ability, too.",
    source="Kazemnejad et al. 2023, arXiv:2305.19466, section 4, figures 2 and 3",
    against="At 1.5 times the trained length the model without positions gives surely fewer right tokens than "
    "RoPE or ALiBi in one of the tasks, or at twice the length it has surely lost less than 0.1.",
    limits="Models of 0.1 M weights, and answers of up to eight digits; the paper trains 107 M on answers of up to "
    "twenty. Scored is the share of right tokens, as whole answers are right or wrong together at this size. All "
    "three have to give 90 % right tokens within the trained length.",
    variants={name: name for name in SCHEMES},
    points=(1.0, 1.5, 2.0),
    metrics=tuple(Metric(name, "share", True) for name in TASKS),
    claims=(
        *(better("none", other, 1.5, metric=metric) for metric, other in product(TASKS, ("rope", "alibi"))),
        *(better("none", "none", 1.0, second_at=2.0, margin=LOST, metric=metric) for metric in TASKS),
    ),
    needs=tuple(able(scheme, 1.0, LEARNED, metric) for metric, scheme in product(TASKS, SCHEMES)),
    full={"seeds": 3, "tasks": FULL, "scores": SCORES},
    quick={"seeds": 1, "tasks": {name: settings | {"steps": 60} for name, settings in FULL.items()}},
    measure=from_scratch,
)

if __name__ == "__main__":
    main(FINDING)
