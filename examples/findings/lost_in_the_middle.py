"""Position bias: is what stands in the middle of the context found less well than what stands at its ends?"""

from __future__ import annotations

from lab.by_depth import by_depth
from lab.claims import ACCURACY, Able, Metric, Order
from lab.finding import Budget, Finding
from lab.run import main

ANSWER = Metric("loss of the answer", "nats/token", higher_is_better=False)
WITHIN, BEYOND = "unpatched, 1×", "yarn, 4×"
OPTIONS = {"task": "posenc_qa", "scores": {ANSWER.name: "nll", ACCURACY.name: "acc"}}

FINDING = Finding(
    name="lost_in_the_middle",
    claim="Language models use what stands at the beginning or at the end of their context better than what stands "
    "in its middle.",
    source="Liu et al. 2023, Lost in the Middle, arXiv:2307.03172, figures 1 and 5",
    against="An answer in the middle that is surely no worse than one at the beginning, or at the end.",
    needs=tuple(Able(variant, at=0.5, least=0.05, metric=ACCURACY.name) for variant in (WITHIN, BEYOND)),
    limits="The published models answer questions of people, from one of twenty passages of Wikipedia. The model "
    "here was trained on questions like those it is asked, about invented people and towns, in documents of one "
    "sentence.",
    variants={WITHIN: {"entry": "unpatched", "length": 1.0}, BEYOND: {"entry": "yarn", "length": 4.0}},
    points=(0.0, 0.25, 0.5, 0.75, 1.0),
    axis="depth of the answer",
    point_format="depth {:g}",
    metrics=(ANSWER, ACCURACY),
    claims=tuple(
        Order(better=variant, worse=variant, at=end, worse_at=0.5) for variant in (WITHIN, BEYOND) for end in (0.0, 1.0)
    ),
    full=Budget(options={**OPTIONS, "keys": 32}),
    quick=Budget(options={**OPTIONS, "keys": 6}),
    measure=by_depth,
    model="starter:llama",
)

if __name__ == "__main__":
    main(FINDING)
