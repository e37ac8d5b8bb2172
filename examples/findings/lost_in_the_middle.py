"""Position bias: does a model find text in the middle of its context less well than text at the ends?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from verdict import Finding, Metric, Score, Scores, able, better, main

from hf_posenc import patch_model
from hf_posenc.eval import evaluate
from hf_posenc.starters.loading import load_starter

ANSWER = Metric("loss of the answer")
WITHIN, BEYOND = "unpatched, 1×", "yarn, 4×"
SCORES = {ANSWER.name: "nll", "accuracy": "acc"}


def by_depth(
    settings: dict[str, Any], points: Sequence[float], seed: int, *, keys: int
) -> Iterator[tuple[float, Scores]]:
    """Score one scheme at one length, at every depth of the answer."""
    model, tokenizer = load_starter("llama")
    length = round(settings["length"] * model.config.max_position_embeddings)
    if "scheme" in settings:
        patch_model(model, settings["scheme"], target_length=length)
    documents = evaluate(
        model, tokenizer, tasks=["posenc_qa"], lengths=[length], longest=length, keys=keys, depths=points, seed=0
    ).documents
    for depth in points:
        yield (
            depth,
            {
                name: [
                    Score(d.document, d.cluster, d.value) for d in documents if (d.metric, d.depth) == (metric, depth)
                ]
                for name, metric in SCORES.items()
            },
        )


FINDING = Finding(
    claim="Language models use what stands at the beginning or at the end of their context better than what stands "
    "in its middle.",
    source="Liu et al. 2023, Lost in the Middle, arXiv:2307.03172, figures 1 and 5",
    against="An answer in the middle that is surely no worse than one at the beginning, or at the end.",
    needs=tuple(able(variant, at=0.5, least=0.05, metric="accuracy") for variant in (WITHIN, BEYOND)),
    limits="The published models answer questions of people, from one of twenty passages of Wikipedia. The model "
    "here was trained on questions like those it is asked, about invented people and towns, in documents of one "
    "sentence.",
    variants={WITHIN: {"length": 1.0}, BEYOND: {"scheme": "yarn", "length": 4.0}},
    points=(0.0, 0.25, 0.5, 0.75, 1.0),
    axis="depth {:g}",
    metrics=(ANSWER, Metric("accuracy", "share", True)),
    claims=tuple(
        better(first=variant, second=variant, at=end, second_at=0.5)
        for variant in (WITHIN, BEYOND)
        for end in (0.0, 1.0)
    ),
    full={"keys": 32},
    quick={"keys": 6},
    measure=by_depth,
)

if __name__ == "__main__":
    main(FINDING)
