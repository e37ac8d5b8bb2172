"""Check of dtype casts: casting a model to half precision and back rounds its weights and nothing else."""

from __future__ import annotations

import torch

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.registry import register_check


@register_check("dtype_cast", needs_copy=True)
def dtype_round_trip_keeps_tables(case: Case, narrow: torch.dtype = torch.bfloat16) -> Deviation:
    """A model cast to ``narrow`` and back is bit-equal to a newly patched model with the rounded weights.

    Angles, slopes and other tables must be computed from Python numbers, not from values that a cast rounds.
    """
    with case.patched() as model:
        tokens, dtype = random_tokens(model, case.clip_length(case.trained_length + 6, model)), model.dtype
        forward(model, tokens)
        forward(model.to(narrow), tokens)
        after = forward(model.to(dtype), tokens)
        rounded_weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with case.unpatched() as model:
        case.apply(model)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(rounded_weights[name])
        value, where = max_deviation(after, forward(model, tokens))
    return case.deviation("dtype_cast", value, f"{where}, after a cast to {narrow}")
