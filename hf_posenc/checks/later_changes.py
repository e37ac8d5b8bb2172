"""Check of offloading: weights that accelerate moves between devices give the same outputs."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from transformers import DynamicCache

from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    forward,
    forward_in_chunks,
    max_deviation,
    new_cache,
    random_tokens,
)
from hf_posenc.checks.registry import register_check
from hf_posenc.core.torch_state import drawn_from
from hf_posenc.patching.patch import patch_model


@register_check("offload", needs_copy=True, slow=True, package="accelerate")
def offloaded_equals_resident(case: Case) -> Deviation:
    """A model offloaded before or after the patch equals the resident model, in two calls and in cached decoding.

    If it is offloaded first, the scheme's parameters must still be initialised from torch's seed.
    """
    found = []
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 5, model))
        offloaded = offload(copy.deepcopy(model))
        for call in ("first call", "second call"):
            found.append(
                (*max_deviation(forward(offloaded, tokens), forward(model, tokens)), f"patched, then offloaded, {call}")
            )
        if case.causal and not case.needs_whole_text:
            found.append((*max_deviation(decode(offloaded, tokens), decode(model, tokens)), "decoding"))
    with case.unpatched() as model:
        offloaded = offload(copy.deepcopy(model))
        for one in (model, offloaded):
            with drawn_from(0):
                patch_model(one, case.scheme, **case.options)
        found.append((*max_deviation(forward(offloaded, tokens), forward(model, tokens)), "offloaded, then patched"))
    value, where, how = max(found)
    return case.deviation("offload", value, f"{where}, {how}")


def offload(model: nn.Module) -> nn.Module:
    """Move the model's weights to CPU memory, from where accelerate loads them for each call."""
    device = next(model.parameters()).device
    from accelerate import cpu_offload

    return cpu_offload(model, execution_device=device)


def decode(model: nn.Module, tokens: Tensor) -> Tensor:
    """Outputs of a text whose last three tokens are decoded one by one."""
    length = tokens.shape[1]
    sizes = [length - 3, 1, 1, 1]
    return forward_in_chunks(model, tokens, new_cache(DynamicCache, model, length), sizes)
