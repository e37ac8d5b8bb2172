"""Dynamic NTK scaling with a KV cache: does reading a text in pieces give what reading it at once gives?"""

from __future__ import annotations

from lab.cached_windows import cached_windows
from lab.claims import LOSS, Metric, Order, Same
from lab.finding import Budget, Finding
from lab.run import main

THEIRS, THEIRS_CACHED = "transformers, one pass", "transformers, cached"
OURS, OURS_CACHED = "hf_posenc, one pass", "hf_posenc, cached"
DEVIATION = Metric("deviation", "nats/token", higher_is_better=False)
PIECE = 8
EXACT = 1e-3
"""Nats/token; the differences of float32 arithmetic in another order are below."""

FINDING = Finding(
    name="dynamic_ntk_cache",
    claim="With dynamic NTK scaling as transformers has it, a text that is read through the KV cache is not scored "
    "as in one pass, because cached keys keep the base of the length at which they were written; keys that are "
    "cached raw, and rotated when they are read, are exact.",
    source="Our own; the base of `dynamic_frequency_update` in transformers' modeling_rope_utils.py follows the "
    "length of the call, and the cache is not rotated again",
    against="Probabilities of transformers' tokens that are within a tenth of a nat of those in one pass, or ours "
    "that differ by more than a thousandth.",
    limits="Pieces of 8 tokens stand for generation token by token. Probabilities that differ need not be worse: "
    "the loss is drawn as well, and not judged.",
    variants={
        THEIRS: {"patched": False, "piece": None},
        THEIRS_CACHED: {"patched": False, "piece": PIECE},
        OURS: {"patched": True, "piece": None},
        OURS_CACHED: {"patched": True, "piece": PIECE},
    },
    points=(1.0, 2.0, 4.0),
    axis="length, multiples of the trained length",
    point_format="{:g}×",
    metrics=(DEVIATION, LOSS),
    claims=(
        *(Order(better=THEIRS, worse=THEIRS_CACHED, at=at, margin=0.1) for at in (2.0, 4.0)),
        *(Same(first=OURS, second=OURS_CACHED, at=at, within=EXACT) for at in (1.0, 2.0, 4.0)),
    ),
    full=Budget(options={"samples": 16, "scored": 64}),
    quick=Budget(options={"samples": 6, "scored": 32}),
    measure=cached_windows,
    model="starter:llama",
)

if __name__ == "__main__":
    main(FINDING)
