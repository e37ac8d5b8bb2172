"""Which pairs of RoPE carry position, and which carry meaning?"""

from __future__ import annotations

from lab.claims import Metric, Order
from lab.finding import Budget, Finding
from lab.rotation_parts import LOSS, NORMS, rotation_parts
from lab.run import main

RESTING = Metric(LOSS, "nats/token", higher_is_better=False)
SHARE = Metric(NORMS, "share of |q||k|", higher_is_better=True)
WHOLE, FASTEST, SLOWEST = "no pairs", "fastest quarter", "slowest quarter"
PARTS = 4

FINDING = Finding(
    name="rotation_pairs",
    claim="The slowest pairs of RoPE carry meaning: queries and keys are largest there, and a model loses little "
    "without their rotation. The fastest pairs carry position: without their rotation the model fails.",
    source="Barbero et al. 2024, Round and Round We Go!, arXiv:2410.06205, sections 4 to 6",
    against="Queries and keys that are no larger in the slowest quarter of the pairs than in the fastest; a loss "
    "that rises by more than 5 % of perplexity without the rotation of the slowest quarter; or one that rises less "
    "without that of the fastest.",
    limits="The source looks at Gemma 7B with 8,192 tokens. Within 256 tokens the slowest quarter of 12 pairs "
    "rotates by at most 0.26 radians, so that its rotation can hardly be missed.",
    variants={
        WHOLE: None,
        FASTEST: 0,
        "second quarter": 1,
        "third quarter": 2,
        SLOWEST: 3,
    },
    points=(1.0,),
    axis="length, multiples of the trained length",
    point_format="{:g}×",
    metrics=(RESTING, SHARE),
    claims=(
        Order(better=SLOWEST, worse=FASTEST, at=1.0),
        Order(better=SLOWEST, worse=WHOLE, at=1.0, margin=-0.05),
        Order(better=SLOWEST, worse=FASTEST, at=1.0, metric=SHARE.name),
    ),
    full=Budget(options={"parts": PARTS, "samples": 48, "scored": 64}),
    quick=Budget(options={"parts": PARTS, "samples": 12, "scored": 32}),
    measure=rotation_parts,
    model="starter:llama",
)

if __name__ == "__main__":
    main(FINDING)
