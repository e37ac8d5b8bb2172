"""Softmax over a growing number of keys n: does attention fade, and does a factor that grows with ln n prevent it?"""

from __future__ import annotations

from itertools import product

from laboratory.tiny import from_scratch
from verdict import Finding, Metric, able, better, main

FACTORS = (16.0, 64.0)
SCALED = ("log-n", "ssmax")
FULL = {"largest": {"trained": 16, "steps": 300, "batch": 16, "learning_rate": 3e-3}}
SCORES = {"loss": ("largest", "loss"), "accuracy": ("largest", "exact")}

FINDING = Finding(
    claim="Over more keys than in training, attention to one of them fades; trained with logits that are "
    "multiplied by ln n (log-n scaling, scalable softmax), a model still finds the largest number among 16 and "
    "64 times as many.",
    source="Nakanishi 2025, arXiv:2501.19399, sections 2 and 3, figure 1; Chiang, Cholak 2022, arXiv:2202.12172; "
    "the task is the max retrieval of Veličković et al. 2024, arXiv:2410.01104",
    against="The plain softmax finds the largest at 64 times the trained number with no higher loss than at the "
    "trained one, or with a surely lower loss than log-n scaling or scalable softmax at 16 or 64 times as many.",
    limits="The largest of up to 16 numbers, in models without positions, so that nothing but the number of keys "
    "changes; the paper has language models with RoPE, whose base is raised for long texts. All three have to "
    "find 90 % within the trained number. A digit among noise, which was asked first, showed no fading in them: "
    "attention tells it from noise too surely.",
    variants={"softmax": "none", "log-n": "none+logn:clip=false", "ssmax": "none+ssmax"},
    points=(1.0, *FACTORS),
    metrics=(
        Metric("loss", "nats/answer"), Metric("accuracy", "share", True),
    ),
    claims=(
        better("softmax", "softmax", 1.0, second_at=64.0),
        *(better(scaled, "softmax", at) for at, scaled in product(FACTORS, SCALED)),
    ),
    needs=tuple(able(name, 1.0, 0.9, "accuracy") for name in ("softmax", *SCALED)),
    full={"seeds": 8, "tasks": FULL, "scores": SCORES},
    quick={"seeds": 1, "tasks": {"largest": FULL["largest"] | {"steps": 150}}},
    measure=from_scratch,
)  # fmt: skip

if __name__ == "__main__":
    main(FINDING)
