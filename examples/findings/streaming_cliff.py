"""Sliding windows: what happens if the first tokens leave the KV cache, and what if four of them stay?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from laboratory.trained import scored as scores_of
from laboratory.trained import windows, with_scheme
from transformers import AutoModelForCausalLM
from verdict import Finding, Metric, Score, Scores, able, better, main

from hf_posenc.starters.loading import starter_path

WINDOW, SINKS, PLAIN = "window", "window with sinks", "unpatched"
SINK = Metric("first token", "share of the attention", True)
FIVE_PERCENT = 0.05
"""Nats/token: 5 % of perplexity."""


def streaming(
    settings: dict[str, Any], points: Sequence[float], seed: int, *, samples: int, scored: int
) -> Iterator[tuple[float, Scores]]:
    """Score one scheme at all lengths; for the unpatched model, also measure its attention to the first token."""
    scores = {"loss": ("posenc_ppl", "nll")}
    for at, losses in with_scheme(settings, points, seed, scores=scores, samples=samples, scored=scored):
        sinks = {SINK.name: first_token_weights(samples)} if at == 1.0 and not settings else {}
        yield at, {**losses, **sinks}


@torch.no_grad()
def first_token_weights(samples: int) -> list[Score]:
    """Mean attention weight of the first token, over queries in the second half of windows of the trained length."""
    model: Any = AutoModelForCausalLM.from_pretrained(starter_path("llama"), attn_implementation="eager").float().eval()
    length = model.config.max_position_embeddings
    ids, names = windows(samples, length)
    means = []
    for window in ids:
        weights = model(input_ids=window[None], output_attentions=True).attentions
        means.append(torch.stack([layer[0, :, length // 2 :, 0].mean() for layer in weights]).mean())
    return scores_of(names, torch.stack(means))


FINDING = Finding(
    claim="A KV cache of the most recent tokens fails as soon as the first tokens leave it; with four first tokens "
    "kept, loss stays what it is within the window, at any length.",
    source="StreamingLLM, arXiv:2309.17453, figure 3 and table 1",
    against="A window without the first tokens whose loss is no higher than with them; or a loss with sinks that "
    "rises with the length.",
    needs=(able(PLAIN, at=1.0, least=0.1, metric=SINK.name),),
    limits="The cliff is that of models that give their first token much of their attention, which small ones do "
    "not learn. A model that gives it less than a tenth has nothing to lose, and decides nothing.",
    variants={WINDOW: {"scheme": "window"}, SINKS: {"scheme": "sinks"}, PLAIN: {}},
    points=(1.0, 2.0, 4.0, 8.0),
    metrics=(Metric("loss"), SINK),
    claims=(
        better(first=SINKS, second=WINDOW, at=2.0, margin=FIVE_PERCENT),
        better(first=SINKS, second=WINDOW, at=8.0, margin=FIVE_PERCENT),
        better(first=SINKS, second=PLAIN, at=8.0),
        better(first=SINKS, second=PLAIN, at=8.0, second_at=1.0, margin=-FIVE_PERCENT),
    ),
    full={"samples": 32, "scored": 64},
    quick={"samples": 8, "scored": 32},
    measure=streaming,
)

if __name__ == "__main__":
    main(FINDING)
