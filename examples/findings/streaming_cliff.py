"""Sliding windows: what happens when the first tokens leave the KV cache, and when four of them stay."""

from __future__ import annotations

from lab.claims import LOSS, Able, Metric, Order
from lab.finding import Budget, Finding
from lab.run import main
from lab.streaming import FIRST_TOKEN, streaming

WINDOW, SINKS, PLAIN = "window", "window with sinks", "unpatched"
OPTIONS = {"scores": {"loss": ("posenc_ppl", "nll")}, "with_attention": PLAIN}
SINK = Metric(FIRST_TOKEN, "share of the attention", higher_is_better=True)
FIVE_PERCENT = 0.05
"""Nats/token: 5 % of perplexity."""

FINDING = Finding(
    name="streaming_cliff",
    claim="A KV cache of the most recent tokens fails as soon as the first tokens leave it; with four first tokens "
    "kept, loss stays what it is within the window, at any length.",
    source="StreamingLLM, arXiv:2309.17453, figure 3 and table 1",
    against="A window without the first tokens whose loss is no higher than with them; or a loss with sinks that "
    "rises with the length.",
    needs=(Able(PLAIN, at=1.0, least=0.1, metric=FIRST_TOKEN),),
    limits="The cliff is that of models that give their first token much of their attention, which small ones do "
    "not learn. A model that gives it less than a tenth has nothing to lose, and decides nothing.",
    variants={WINDOW: "window", SINKS: "sinks", PLAIN: "unpatched"},
    points=(1.0, 2.0, 4.0, 8.0),
    axis="length, multiples of the trained length",
    point_format="{:g}×",
    metrics=(LOSS, SINK),
    claims=(
        Order(better=SINKS, worse=WINDOW, at=2.0, margin=FIVE_PERCENT),
        Order(better=SINKS, worse=WINDOW, at=8.0, margin=FIVE_PERCENT),
        Order(better=SINKS, worse=PLAIN, at=8.0),
        Order(better=SINKS, worse=PLAIN, at=8.0, worse_at=1.0, margin=-FIVE_PERCENT),
    ),
    full=Budget(options={**OPTIONS, "samples": 32}),
    quick=Budget(options={**OPTIONS, "samples": 8, "scored": 32}),
    measure=streaming,
    model="starter:llama",
)

if __name__ == "__main__":
    main(FINDING)
