"""Measure what a cell costs: peak memory during a block, and bytes of the KV cache for each token."""

from __future__ import annotations

from typing import Any

import torch

from hf_posenc.core import memory
from hf_posenc.core.memory import tensors_in
from hf_posenc.eval.lm.log_probs import unwrapped
from hf_posenc.eval.results.record import Costs
from hf_posenc.forward.host_calls import cache_name, cache_of

FEW, MANY = 16, 32
"""Tokens of the two caches whose difference is that of a token: fewer than any window that schemes have by default."""


def costs_since(peak: PeakMemory, model: Any) -> Costs:
    """Costs of a model, as it is patched now, since a meter was made."""
    memory_taken = peak.read()  # before the two small passes
    return Costs(memory_taken, peak.memory_of, cache_per_token(model))


class PeakMemory:
    """Peak memory since it was made: of the device on CUDA, else of the process.

    Attributes:
        memory_of: the device, or ``"process"``.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, on_cuda = device, device.type == "cuda"
        self.memory_of = str(device) if on_cuda else "process"
        if on_cuda:
            torch.cuda.reset_peak_memory_stats(device)
        self.measurable = on_cuda or memory.reset_peak()

    def read(self) -> int | None:
        """The peak so far in bytes; None where the system does not tell."""
        if not self.measurable:
            return None
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return memory.peak()


def cache_per_token(model: Any) -> float | None:
    """Bytes that the KV cache of a model, as it is patched, takes for each token; None where it keeps none."""
    if cache_name(type(unwrapped(model))) is None:  # encoders, and models whose state does not grow
        return None
    few, many = (cache_bytes(model, tokens) for tokens in (FEW, MANY))
    return (many - few) / (MANY - FEW) if many else None


@torch.no_grad()
def cache_bytes(model: Any, tokens: int) -> int:
    """Bytes of the KV cache after so many tokens."""
    ids = torch.zeros(1, tokens, dtype=torch.long, device=model.device)
    cache = cache_of(model(input_ids=ids, use_cache=True))
    found = {(tensor.data_ptr(), tensor.shape): tensor.nbytes for tensor in tensors_in(cache)}
    return sum(found.values())
