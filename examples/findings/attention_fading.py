"""Softmax over more and more keys: does attention fade, and does a factor that grows with ln n keep it?"""

from __future__ import annotations

from itertools import product

from lab.claims import Able, Metric, Order
from lab.finding import Budget, Finding
from lab.from_scratch.measure import measure_cells
from lab.run import main

FACTORS = (16.0, 64.0)
SCALED = ("log-n", "ssmax")
FULL = {"largest": {"trained": 16, "steps": 300, "batch": 16, "learning_rate": 3e-3}}
SCORES = {"loss": ("largest", "loss"), "accuracy": ("largest", "exact")}

FINDING = Finding(
    name="attention_fading",
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
    axis="numbers, multiples of the trained number",
    point_format="{:g}×",
    metrics=(
        Metric("loss", "nats/answer", higher_is_better=False), Metric("accuracy", "share", higher_is_better=True),
    ),
    claims=(
        Order("softmax", "softmax", 1.0, worse_at=64.0),
        *(Order(scaled, "softmax", at) for at, scaled in product(FACTORS, SCALED)),
    ),
    needs=tuple(Able(name, 1.0, 0.9, "accuracy") for name in ("softmax", *SCALED)),
    full=Budget(seeds=tuple(range(8)), options={"tasks": FULL, "scores": SCORES}),
    quick=Budget(options={"tasks": {"largest": FULL["largest"] | {"steps": 150}}, "scores": SCORES}),
    measure=measure_cells,
)  # fmt: skip

if __name__ == "__main__":
    main(FINDING)
