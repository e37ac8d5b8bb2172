"""DroPE: drop the rotation of a trained model, recalibrate it briefly, and read longer texts."""

from __future__ import annotations

from laboratory.trained import tuned
from verdict import Finding, Metric, able, better, main

FACTOR = 4.0
PLAIN, YARN, DROPE = "unpatched", "yarn", "drope"
ANSWER = Metric("loss of the key")
OPTIONS = {
    "scores": {
        "loss": ("posenc_ppl", "nll"),
        "accuracy": ("posenc_passkey", "acc"),
        ANSWER.name: ("posenc_passkey", "nll"),
    },
    "depths": (0.0, 0.5, 1.0),
}

FINDING = Finding(
    claim="A model whose rotation is dropped after pre-training, and which is recalibrated briefly at its old "
    "length, keeps its quality there, and finds keys beyond it better than with a scaled rotation.",
    source="Gelberg et al. 2025, DroPE, arXiv:2512.12167, sections 4 and 5",
    against="A loss at the trained length that stays over 5 % of perplexity above the original's; or, at twice "
    "that length, a loss that is no lower than the original's, or keys found no better than with YaRN.",
    needs=(able(DROPE, at=1.0, least=0.05, metric="accuracy"),),
    limits="The source recalibrates models of some hundred million weights and more, and for longer; here 100 "
    "steps have 200,000 tokens in all. A model that finds no keys within its own length after them says nothing "
    "of longer ones. One run: the intervals are over documents.",
    variants={
        PLAIN: {"scheme": None},
        YARN: {"scheme": "yarn"},
        DROPE: {"scheme": None, "recipe": "drope"},
    },
    points=(1.0, 2.0, FACTOR),
    metrics=(Metric("loss"), Metric("accuracy", "share", True), ANSWER),
    claims=(
        better(first=DROPE, second=PLAIN, at=1.0, margin=-0.05),
        better(first=DROPE, second=PLAIN, at=2.0),
        better(first=DROPE, second=YARN, at=2.0, metric=ANSWER.name),
    ),
    full={**OPTIONS, "training": {"steps": 100}, "samples": 32, "keys": 8},
    quick={"training": {"steps": 20}, "samples": 8, "keys": 4},
    measure=tuned,
)

if __name__ == "__main__":
    main(FINDING)
