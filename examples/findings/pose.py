"""PoSE: train on short rows with skipped positions, to read longer texts."""

from __future__ import annotations

from laboratory.trained import tuned
from verdict import Finding, Metric, better, main

FACTOR = 4.0
ZERO, POSE, WHOLE = "pi, not trained", "pi, PoSE on rows of 1×", "pi, rows of 4×"
SCORES = {"loss": ("posenc_ppl", "nll")}

FINDING = Finding(
    claim="A model trained on rows of its old length, whose positions skip over the new one, reads texts of the "
    "new length as well as a model trained on rows of that length.",
    source="Zhu et al. 2023, PoSE, arXiv:2309.10400, section 4.2 and table 1",
    against="A loss at four times the trained length that is surely no lower than without training, or surely more "
    "than 5 % of perplexity above that after training on whole rows.",
    limits="The source trains LLaMA 7B for 1,000 steps; here both have 40 steps of 2,048 tokens. "
    "One run: the intervals are over documents.",
    variants={
        ZERO: {"scheme": "pi"},
        POSE: {"scheme": "pi", "recipe": "pose", "training": {"batch": 8}},
        WHOLE: {"scheme": "pi", "recipe": "full_length", "training": {"batch": 2}},
    },
    points=(1.0, FACTOR),
    metrics=(Metric("loss"),),
    claims=(
        better(first=POSE, second=ZERO, at=FACTOR),
        better(first=POSE, second=WHOLE, at=FACTOR, margin=-0.05),
    ),
    full={"training": {"steps": 40}, "scores": SCORES, "samples": 96},
    quick={"training": {"steps": 12}, "scores": SCORES, "samples": 8},
    measure=tuned,
)

if __name__ == "__main__":
    main(FINDING)
