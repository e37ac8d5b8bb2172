"""Train short, test long: what four encodings that are trained at one length make of longer texts."""

from __future__ import annotations

from lab.claims import Metric, Order
from lab.finding import Budget, Finding
from lab.from_scratch.measure import measure_cells
from lab.run import main

SCORES = {"loss": ("text", "loss")}
FULL = {"trained": 128, "steps": 1000, "batch": 16, "learning_rate": 2e-3}

FINDING = Finding(
    name="alibi_extrapolation",
    claim="Trained at one length, ALiBi keeps its loss on four times longer texts; T5's bias is next, RoPE "
    "extrapolates little, and sinusoidal encodings least.",
    source="Press, Smith, Lewis 2021, arXiv:2108.12409, figure 1 and sections 2.2 and 3",
    against="At four times the trained length ALiBi is surely worse than T5's bias, T5's bias than RoPE, or RoPE "
    "than sinusoids; or ALiBi loses more than 0.05 nats a byte against its own loss at the trained length.",
    limits="Models of 0.1 M weights that read bytes of source code and are trained on 128 of them: long contexts "
    "help them little, so that the finding is about harm.",
    variants={"alibi": "alibi", "t5": "t5", "rope": "rope", "sinusoidal": "sinusoidal:scale=learned"},
    points=(1.0, 2.0, 4.0, 8.0),
    axis="context, multiples of the trained length",
    point_format="{:g}×",
    metrics=(Metric("loss", "nats/byte", higher_is_better=False),),
    claims=(
        Order("alibi", "t5", 4.0),
        Order("t5", "rope", 4.0),
        Order("rope", "sinusoidal", 4.0),
        Order("alibi", "alibi", 4.0, worse_at=1.0, margin=-0.05),
    ),
    full=Budget(seeds=tuple(range(5)), options={"tasks": {"text": FULL}, "scores": SCORES}),
    quick=Budget(seeds=(0, 1), options={"tasks": {"text": FULL | {"steps": 60}}, "scores": SCORES}),
    measure=measure_cells,
)

if __name__ == "__main__":
    main(FINDING)
