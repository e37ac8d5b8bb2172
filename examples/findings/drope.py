"""DroPE: drop the rotation of a trained model, recalibrate it briefly, and read longer texts."""

from __future__ import annotations

from lab.claims import ACCURACY, LOSS, Able, Metric, Order
from lab.finding import Budget, Finding
from lab.run import main
from lab.tuned import tuned

FACTOR = 4.0
PLAIN, YARN, DROPE = "unpatched", "yarn", "drope"
ANSWER = Metric("loss of the key", "nats/token", higher_is_better=False)
OPTIONS = {
    "factor": FACTOR,
    "scores": {
        LOSS.name: ("posenc_ppl", "nll"),
        ACCURACY.name: ("posenc_passkey", "acc"),
        ANSWER.name: ("posenc_passkey", "nll"),
    },
    "depths": (0.0, 0.5, 1.0),
}

FINDING = Finding(
    name="drope",
    claim="A model whose rotation is dropped after pre-training, and which is recalibrated briefly at its old "
    "length, keeps its quality there, and finds keys beyond it better than with a scaled rotation.",
    source="Gelberg et al. 2025, DroPE, arXiv:2512.12167, sections 4 and 5",
    against="A loss at the trained length that stays over 5 % of perplexity above the original's; or, at twice "
    "that length, a loss that is no lower than the original's, or keys found no better than with YaRN.",
    needs=(Able(DROPE, at=1.0, least=0.05, metric=ACCURACY.name),),
    limits="The source recalibrates models of some hundred million weights and more, and for longer; here 100 "
    "steps have 200,000 tokens in all. A model that finds no keys within its own length after them says nothing "
    "of longer ones. One run: the intervals are over documents.",
    variants={
        PLAIN: {"scheme": None},
        YARN: {"scheme": "yarn"},
        DROPE: {"scheme": None, "recipe": "drope"},
    },
    points=(1.0, 2.0, FACTOR),
    axis="length, multiples of the trained length",
    point_format="{:g}×",
    metrics=(LOSS, ACCURACY, ANSWER),
    claims=(
        Order(better=DROPE, worse=PLAIN, at=1.0, margin=-0.05),
        Order(better=DROPE, worse=PLAIN, at=2.0),
        Order(better=DROPE, worse=YARN, at=2.0, metric=ANSWER.name),
    ),
    full=Budget(options={**OPTIONS, "training": {"steps": 100}, "samples": 32, "keys": 8}),
    quick=Budget(options={**OPTIONS, "training": {"steps": 20}, "samples": 8, "keys": 4}),
    measure=tuned,
    model="starter:llama",
)

if __name__ == "__main__":
    main(FINDING)
