"""Position interpolation: how few steps of fine-tuning does it need?"""

from __future__ import annotations

from laboratory.trained import tuned
from verdict import Finding, Metric, better, main

FACTOR = 4.0
PLAIN, ZERO, FEW, MORE = "unpatched", "pi, 0 steps", "pi, 10 steps", "pi, 200 steps"
FIVE_PERCENT = 0.05
"""Nats/token: 5 % of perplexity."""
SCORES = {"loss": ("posenc_ppl", "nll")}
TRAINING = {"method": "full", "batch": 2}


def trained(steps: int) -> dict[str, object]:
    """Settings of position interpolation with some steps of full fine-tuning on rows of the target length."""
    return {"scheme": "pi", "recipe": "full_length", "training": {"steps": steps}}


FINDING = Finding(
    claim="A few steps of fine-tuning are enough for position interpolation: loss falls steeply in the first of "
    "them, and soon is that of the original model at its own length.",
    source="Chen et al. 2023, Position Interpolation, arXiv:2306.15595, section 3.2 and table 3",
    against="A loss at four times the trained length that surely does not fall within 10 steps, or that after 200 "
    "is still more than 5 % of perplexity above that of the original model at its trained length.",
    limits="The 200 steps of the source have some hundred thousand tokens each, and its LLaMA billions of weights; "
    "here they have 2,048 tokens, and the model a few million weights. One run: the intervals are over documents.",
    variants={PLAIN: {"scheme": None}, ZERO: {"scheme": "pi"}, FEW: trained(10), MORE: trained(200)},
    points=(1.0, FACTOR),
    metrics=(Metric("loss"),),
    claims=(
        better(first=FEW, second=ZERO, at=FACTOR),
        better(first=MORE, second=FEW, at=FACTOR),
        better(first=MORE, second=PLAIN, at=FACTOR, second_at=1.0, margin=-FIVE_PERCENT),
    ),
    full={"training": TRAINING, "scores": SCORES, "samples": 32},
    quick={"training": TRAINING | {"batch": 1}, "scores": SCORES, "samples": 8},
    measure=tuned,
)

if __name__ == "__main__":
    main(FINDING)
