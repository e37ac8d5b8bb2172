"""Four distance biases, each trained at one length, on texts that are two to eight times as long."""

from __future__ import annotations

from itertools import product

from laboratory.tiny import from_scratch
from verdict import Finding, Metric, better, main

SCORES = {"loss": ("text", "loss")}
FULL = {"trained": 128, "steps": 1000, "batch": 16, "learning_rate": 2e-3}
FACTORS = (2.0, 4.0, 8.0)
OTHERS = ("kerple", "t5", "alibi")

FINDING = Finding(
    claim="Trained at one length, FIRE has a lower loss than KERPLE, T5's bias and ALiBi on texts two to eight "
    "times as long.",
    source="Li et al. 2023, arXiv:2310.04418, section 5.1 and figure 1 (there trained on 2,048 tokens, to 8,192)",
    against="At 2, 4 or 8 times the trained length FIRE is surely worse than one of the three others.",
    limits="Models of 0.1 M weights that read bytes of source code and are trained on 128 of them: long contexts "
    "help them little, and the learned biases have few steps to be learned in.",
    variants={"fire": "fire", "kerple": "kerple", "t5": "t5", "alibi": "alibi"},
    points=(1.0, *FACTORS),
    metrics=(Metric("loss", "nats/byte"),),
    claims=tuple(better("fire", other, at) for at, other in product(FACTORS, OTHERS)),
    full={"seeds": 3, "tasks": {"text": FULL}, "scores": SCORES},
    quick={"seeds": 2, "tasks": {"text": FULL | {"steps": 60}}},
    measure=from_scratch,
)

if __name__ == "__main__":
    main(FINDING)
