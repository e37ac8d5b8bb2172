"""State shared by the layers of a forward pass is freed with it, without waiting for the garbage collector."""

from __future__ import annotations

import gc

import pytest
import torch

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.core.context import PositionContext
from hf_posenc.forward.positions import ForwardContext

SCHEMES = ["rope", "yarn", "self_extend", "dca", "alibi", "t5", "kerple", "sandwich", "fire", "fox", "cope", "sinks",
           "dynamic_ntk", "longrope", "transformer_xl", "deberta", "logn", "xpos"]  # fmt: skip


def calls() -> list[object]:
    """What is left of any call in this process, those of other tests included."""
    return [one for one in gc.get_objects() if type(one) in (PositionContext, ForwardContext)]


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_no_state_remains_after_a_call(scheme: str) -> None:
    model = patch_model(tiny_model("llama"), scheme, factor=4)
    ids = torch.arange(70)[None] % 16
    gc.collect()
    before = calls()
    gc.disable()
    try:
        cache = model(ids, use_cache=True).past_key_values
        model(ids[:, :1], past_key_values=cache)
        left = [type(one).__name__ for one in calls() if not any(one is other for other in before)]
    finally:
        gc.enable()
    assert left == []
