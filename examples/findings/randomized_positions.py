"""Random positions in training, drawn from a far longer range, against positions 0, 1, 2 … on longer copies."""

from __future__ import annotations

from itertools import product

from lab.claims import Able, Metric, Order
from lab.finding import Budget, Finding
from lab.from_scratch.measure import measure_cells
from lab.run import main

PLAIN = {"rope": "rope", "sinusoidal": "sinusoidal:scale=learned"}
RANDOM = {"rope+randpos": "rope+randpos", "sinusoidal+randpos": "sinusoidal+randpos:scale=learned"}
FACTORS = (1.5, 2.0)
FULL = {"copy": {"trained": 8, "steps": 4000, "batch": 32, "learning_rate": 2e-3}}
SCORES = {"tokens": ("copy", "tokens")}

FINDING = Finding(
    name="randomized_positions",
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
    axis="length of the string, multiples of the trained length",
    point_format="{:g}×",
    metrics=(Metric("tokens", "share", higher_is_better=True),),
    claims=(*(Order(random, plain, at) for at, (random, plain) in product(FACTORS, zip(RANDOM, PLAIN, strict=True))),),
    needs=tuple(Able(name, 1.0, 0.9) for name in (*PLAIN, *RANDOM)),
    full=Budget(seeds=(0, 1, 2), options={"tasks": FULL, "scores": SCORES}),
    quick=Budget(options={"tasks": {"copy": FULL["copy"] | {"steps": 120}}, "scores": SCORES}),
    measure=measure_cells,
)

if __name__ == "__main__":
    main(FINDING)
