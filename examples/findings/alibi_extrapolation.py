"""Train short, test long: four encodings are trained at one length and tested on longer texts."""

from __future__ import annotations

from laboratory.tiny import from_scratch
from verdict import Finding, Metric, better, main

SCORES = {"loss": ("text", "loss")}
FULL = {"trained": 128, "steps": 1000, "batch": 16, "learning_rate": 2e-3}

FINDING = Finding(
    claim="Trained at one length, ALiBi keeps its loss on four times longer texts; T5's bias is next, RoPE "
    "extrapolates little, and sinusoidal encodings least.",
    source="Press, Smith, Lewis 2021, arXiv:2108.12409, figure 1 and sections 2.2 and 3",
    against="At four times the trained length ALiBi is surely worse than T5's bias, T5's bias than RoPE, or RoPE "
    "than sinusoids; or ALiBi loses more than 0.05 nats a byte against its own loss at the trained length.",
    limits="Models of 0.1 M weights that read bytes of source code and are trained on 128 of them: long contexts "
    "help them little, so that the finding is about harm.",
    variants={"alibi": "alibi", "t5": "t5", "rope": "rope", "sinusoidal": "sinusoidal:scale=learned"},
    points=(1.0, 2.0, 4.0, 8.0),
    metrics=(Metric("loss", "nats/byte"),),
    claims=(
        better("alibi", "t5", 4.0),
        better("t5", "rope", 4.0),
        better("rope", "sinusoidal", 4.0),
        better("alibi", "alibi", 4.0, second_at=1.0, margin=-0.05),
    ),
    full={"seeds": 5, "tasks": {"text": FULL}, "scores": SCORES},
    quick={"seeds": 2, "tasks": {"text": FULL | {"steps": 60}}},
    measure=from_scratch,
)

if __name__ == "__main__":
    main(FINDING)
