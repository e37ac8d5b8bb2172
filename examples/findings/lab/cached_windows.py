"""Read a text in pieces through the KV cache, or in a single forward pass, and score its last tokens.

Two metrics: ``loss``, and ``deviation``, the mean over the tokens of |log p − log p in one pass| of the same model,
which is 0 where the cache is exact.

The settings of a variant: ``patched``, whether the model carries our scheme or transformers' own rotation of the type
``dynamic``; ``piece``, tokens read at a time, None for all at once. A point of the axis is a length in multiples of the
trained length, and the factor of either. Options of the budget: ``samples`` windows, ``scored`` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.forward.host_calls import cache_argument, cache_of
from hf_posenc.patching.patch import patch_model
from lab.cells import Scores
from lab.finding import Job
from lab.text_windows import scored_windows, token_losses, windows_of


def cached_windows(job: Job) -> Iterator[tuple[float, Scores]]:
    """Score one way of reading at all lengths of a job."""
    named = ModelName.of(job.model)
    trained = AutoConfig.from_pretrained(named.model).max_position_embeddings
    windows = windows_of(job, round(max(job.axis) * trained))
    for number, at in enumerate(job.points):
        length = round(at * trained)
        job.progress(number / len(job.points), f"{length:,} tokens")
        ids = torch.tensor([window.ids[-length:] for window in windows])
        model, scored = model_of(named.model, job.settings["patched"], at), job.options["scored"]
        losses, exact = (
            token_losses(logits_of(model, ids, piece), ids, scored) for piece in (job.settings["piece"], None)
        )
        values = {"loss": losses, "deviation": (losses - exact).abs()}
        yield at, {name: scored_windows(windows, found.mean(dim=1)) for name, found in values.items()}


def model_of(name: str, patched: bool, factor: float) -> Any:
    """The model with dynamic NTK scaling: ours, or that of transformers."""
    config = AutoConfig.from_pretrained(name)
    if not patched:
        config.rope_parameters = {**config.rope_parameters, "rope_type": "dynamic", "factor": factor}
    model = AutoModelForCausalLM.from_pretrained(name, config=config, dtype=torch.float32)
    return (patch_model(model, "dynamic_ntk", factor=factor, multiplier=factor) if patched else model).eval()


@torch.no_grad()
def logits_of(model: Any, ids: Tensor, piece: int | None) -> Tensor:
    """Logits of ``ids [row, token]``, read in pieces through a KV cache, or all at once."""
    cache, found = None, []
    for part in ids.split(piece or ids.shape[1], dim=1):
        result = model(input_ids=part, use_cache=piece is not None, **cache_argument(type(model), cache))
        cache = cache_of(result)
        found.append(result.logits)
    return torch.cat(found, dim=1)
