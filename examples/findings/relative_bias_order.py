"""Four biases of the distance, each trained at one length, on texts of two to eight times that length."""

from __future__ import annotations

from itertools import product

from lab.claims import Metric, Order
from lab.finding import Budget, Finding
from lab.from_scratch.measure import measure_cells
from lab.run import main

SCORES = {"loss": ("text", "loss")}
FULL = {"trained": 128, "steps": 1000, "batch": 16, "learning_rate": 2e-3}
FACTORS = (2.0, 4.0, 8.0)
OTHERS = ("kerple", "t5", "alibi")

FINDING = Finding(
    name="relative_bias_order",
    claim="Trained at one length, FIRE has a lower loss than KERPLE, T5's bias and ALiBi on texts two to eight "
    "times as long.",
    source="Li et al. 2023, arXiv:2310.04418, section 5.1 and figure 1 (there trained on 2,048 tokens, to 8,192)",
    against="At 2, 4 or 8 times the trained length FIRE is surely worse than one of the three others.",
    limits="Models of 0.1 M weights that read bytes of source code and are trained on 128 of them: long contexts "
    "help them little, and the learned biases have few steps to be learned in.",
    variants={"fire": "fire", "kerple": "kerple", "t5": "t5", "alibi": "alibi"},
    points=(1.0, *FACTORS),
    axis="context, multiples of the trained length",
    point_format="{:g}×",
    metrics=(Metric("loss", "nats/byte", higher_is_better=False),),
    claims=tuple(Order("fire", other, at) for at, other in product(FACTORS, OTHERS)),
    full=Budget(seeds=(0, 1, 2), options={"tasks": {"text": FULL}, "scores": SCORES}),
    quick=Budget(seeds=(0, 1), options={"tasks": {"text": FULL | {"steps": 60}}, "scores": SCORES}),
    measure=measure_cells,
)

if __name__ == "__main__":
    main(FINDING)
