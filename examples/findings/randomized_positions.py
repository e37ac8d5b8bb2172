"""Random positions in training, drawn from a far longer range, against positions 0, 1, 2 … on longer copies."""

from __future__ import annotations

from itertools import product

from laboratory.tiny import from_scratch
from verdict import Finding, Metric, able, better, main

PLAIN = {"rope": "rope", "sinusoidal": "sinusoidal:scale=learned"}
RANDOM = {"rope+randpos": "rope+randpos", "sinusoidal+randpos": "sinusoidal+randpos:scale=learned"}
FACTORS = (1.5, 2.0)
FULL = {"copy": {"trained": 8, "steps": 4000, "batch": 32, "learning_rate": 2e-3}}
SCORES = {"tokens": ("copy", "tokens")}

FINDING = Finding(
    claim="Trained with randomized positions, models copy longer strings than they were trained on better than "
    "the same models with consecutive positions.",
    source="Ruoss et al. 2023, arXiv:2305.16843, sections 3 and 4 (Duplicate String)",
    against="At 1.5 or 2 times the trained length, RoPE or sinusoids with consecutive positions give surely more "
    "right tokens than the same with randomized ones.",
    limits="Decoders of 0.1 M weights and strings of up to 8 digits; the paper trains encoders on strings of up "
    "to 40 and tests up to 500. Scored is the share of right tokens. All four have to give 90 % right tokens "
    "within the trained length.",
    variants=PLAIN | RANDOM,
    points=(1.0, *FACTORS),
    metrics=(Metric("tokens", "share", True),),
    claims=(*(better(random, plain, at) for at, (random, plain) in product(FACTORS, zip(RANDOM, PLAIN, strict=True))),),
    needs=tuple(able(name, 1.0, 0.9) for name in (*PLAIN, *RANDOM)),
    full={"seeds": 3, "tasks": FULL, "scores": SCORES},
    quick={"seeds": 1, "tasks": {"copy": FULL["copy"] | {"steps": 120}}},
    measure=from_scratch,
)

if __name__ == "__main__":
    main(FINDING)
