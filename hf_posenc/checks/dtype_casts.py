"""Check of casts: a model that was half precision for a while has lost digits of its weights, and of nothing else."""

from __future__ import annotations

import torch

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.registry import register_check


@register_check("cast", copies=True)
def cast_and_back_keeps_tables(pair: Case, narrow: torch.dtype = torch.bfloat16) -> Deviation:
    """A model read, cast to ``narrow``, read and cast back equals, bit by bit, one newly patched with those weights.

    Angles, slopes and other tables are computed from Python numbers, and not from what a cast has rounded.
    """
    with pair.patched() as model:
        tokens, wide = random_tokens(model, pair.length(pair.trained + 6, model)), model.dtype
        forward(model, tokens)
        forward(model.to(narrow), tokens)
        after = forward(model.to(wide), tokens)
        rounded = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with pair.host() as model:
        pair.apply(model)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(rounded[name])
        value, where = max_deviation(after, forward(model, tokens))
    return pair.gap("cast", value, f"{where}, after {narrow}")
