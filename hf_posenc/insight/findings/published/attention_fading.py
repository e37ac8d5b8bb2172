"""Softmax over more and more keys: does attention fade, and does a factor that grows with ln n keep it?"""

from __future__ import annotations

from itertools import product

from hf_posenc.insight.findings.claims import Able, Metric, Order
from hf_posenc.insight.findings.finding import Budget, Finding
from hf_posenc.insight.findings.from_scratch.measure import measure_cells
from hf_posenc.insight.findings.registry import register_finding

FACTORS = (4.0, 16.0)
SCALED = ("log-n", "ssmax")
FULL = {"needle": {"trained": 16, "steps": 300, "batch": 16, "learning_rate": 3e-3}}
SCORES = {"loss": ("needle", "loss"), "accuracy": ("needle", "exact")}

FINDING = register_finding(
    Finding(
        name="attention_fading",
        claim="Over more keys than in training, attention to one of them fades; trained with logits that are "
        "multiplied by ln n (log-n scaling, scalable softmax), a model still finds a single token among 4 and 16 "
        "times as many.",
        source="Nakanishi 2025, arXiv:2501.19399, sections 2 and 3, figure 1; Chiang, Cholak 2022, arXiv:2202.12172",
        against="The plain softmax finds the token at 16 times the trained length with no higher loss than at the "
        "trained one, or with a surely lower loss than log-n scaling or scalable softmax at 4 or 16 times that length.",
        limits="One digit among noise, in models without positions, so that nothing but the number of keys changes; "
        "the paper has language models with RoPE, whose base is raised for long texts. All three have to find 90 % "
        "of the digits within the trained length.",
        variants={"softmax": "none", "log-n": "none+logn:clip=false", "ssmax": "none+ssmax"},
        points=(1.0, *FACTORS),
        axis="tokens of noise, multiples of the trained number",
        point_format="{:g}×",
        metrics=(
            Metric("loss", "nats/answer", higher_is_better=False), Metric("accuracy", "share", higher_is_better=True),
        ),
        claims=(
            Order("softmax", "softmax", 1.0, worse_at=16.0),
            *(Order(scaled, "softmax", at) for at, scaled in product(FACTORS, SCALED)),
        ),
        needs=tuple(Able(name, 1.0, 0.9, "accuracy") for name in ("softmax", *SCALED)),
        full=Budget(seeds=(0, 1, 2), options={"tasks": FULL, "scores": SCORES}),
        quick=Budget(options={"tasks": {"needle": FULL["needle"] | {"steps": 120}}, "scores": SCORES}),
        measure=measure_cells,
    )
)  # fmt: skip
