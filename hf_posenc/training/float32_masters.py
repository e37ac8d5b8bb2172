"""Full fine-tuning of a model in half precision: its weights are float32 while it trains, and computed in bfloat16.

Mixed-precision training with master weights (Micikevicius et al. 2017, arXiv:1710.03740): steps of AdamW are added to
float32 weights, and `autocast` computes in bfloat16 from them. Weights in bfloat16 themselves would round most steps
of a small learning rate to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from hf_posenc.core.constants import HALF


def in_half_precision(model: nn.Module) -> bool:
    """Whether a weight that is trained is in half precision."""
    return any(weight.dtype in HALF for weight in model.parameters() if weight.requires_grad)


@contextmanager
def float32_masters(model: nn.Module) -> Iterator[None]:
    """Hold the weights of ``model`` in float32 during the block, and give them their dtype back after it."""
    halves = {name: weight.dtype for name, weight in model.named_parameters() if weight.dtype in HALF}
    for name, weight in model.named_parameters():
        if name in halves:
            weight.data = weight.data.float()
    try:
        yield
    finally:
        for name, weight in model.named_parameters():
            if name in halves and type(weight.data) is Tensor:  # what FSDP has sharded stays as it is
                weight.data = weight.data.to(halves[name])
