"""Dynamic NTK scaling with a KV cache: does reading a text in pieces give what reading it at once gives?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from laboratory.trained import scored, token_losses, windows
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from verdict import Finding, Metric, Scores, better, main, same

from hf_posenc import patch_model
from hf_posenc.forward.host_calls import cache_argument, cache_in_output
from hf_posenc.starters.loading import starter_path

THEIRS, THEIRS_CACHED = "transformers, one pass", "transformers, cached"
OURS, OURS_CACHED = "hf_posenc, one pass", "hf_posenc, cached"
DEVIATION = Metric("deviation")
LLAMA = starter_path("llama")
PIECE = 8
EXACT = 1e-3
"""Nats/token; differences that come from the order of float32 operations are smaller."""


def cached_windows(
    settings: dict[str, Any], points: Sequence[float], seed: int, *, samples: int, last: int
) -> Iterator[tuple[float, Scores]]:
    """Loss of the last tokens of windows, and |log p − log p in one pass|, which is 0 if the cache is exact."""
    trained = AutoConfig.from_pretrained(LLAMA).max_position_embeddings
    long, names = windows(samples, round(max(points) * trained))
    for at in points:
        ids, model = long[:, -round(at * trained) :], model_of(settings["patched"], at)
        losses, exact = (token_losses(logits_of(model, ids, n), ids, last) for n in (settings["piece"], None))
        values = {"loss": losses, "deviation": (losses - exact).abs()}
        yield at, {metric: scored(names, by_token.mean(dim=1)) for metric, by_token in values.items()}


def model_of(patched: bool, factor: float) -> Any:
    """The bundled Llama with dynamic NTK scaling: that of this package, or that of transformers."""
    config = AutoConfig.from_pretrained(LLAMA)
    if not patched:
        config.rope_parameters = {**config.rope_parameters, "rope_type": "dynamic", "factor": factor}
    model = AutoModelForCausalLM.from_pretrained(LLAMA, config=config, dtype=torch.float32)
    return (patch_model(model, "dynamic_ntk", factor=factor, multiplier=factor) if patched else model).eval()


@torch.no_grad()
def logits_of(model: Any, ids: Tensor, piece: int | None) -> Tensor:
    """Logits of ``ids [row, token]``, read in pieces through a KV cache, or all at once."""
    cache, logits = None, []
    for part in ids.split(piece or ids.shape[1], dim=1):
        result = model(input_ids=part, use_cache=piece is not None, **cache_argument(type(model), cache))
        cache = cache_in_output(result)
        logits.append(result.logits)
    return torch.cat(logits, dim=1)


FINDING = Finding(
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
    metrics=(DEVIATION, Metric("loss")),
    claims=(
        *(better(first=THEIRS, second=THEIRS_CACHED, at=at, margin=0.1) for at in (2.0, 4.0)),
        *(same(first=OURS, second=OURS_CACHED, at=at, within=EXACT) for at in (1.0, 2.0, 4.0)),
    ),
    full={"samples": 16, "last": 64},
    quick={"samples": 6, "last": 32},
    measure=cached_windows,
)

if __name__ == "__main__":
    main(FINDING)
