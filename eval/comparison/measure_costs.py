"""Measure what a cell costs: peak memory during a block, and bytes of the KV cache for each token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_posenc.eval.results.costs import Costs

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""What Linux takes, written to ``clear_refs``, to let the peak of the resident memory start anew."""
FEW, MANY = 16, 32
"""Tokens of the two caches whose difference is that of a token: fewer than any window that schemes have by default."""


class CostMeter:
    """Costs of a cell while it is measured, on the model of an lm-eval model object."""

    def __init__(self, model: Any) -> None:
        self.peak = PeakMemory(model.device)
        self.peak_memory: int | None = None
        self.cache_per_token: float | None = None

    def read_cache(self, model: Any) -> None:
        """Measure the KV cache of the model as it is patched now."""
        self.peak_memory = self.peak.read()  # before the two small passes
        self.cache_per_token = cache_per_token(model)

    def costs(self) -> Costs:
        """What was measured."""
        return Costs(self.peak_memory, self.peak.memory_of, self.cache_per_token)


class PeakMemory:
    """Peak memory since it was made: of the device on CUDA, else of the process.

    Attributes:
        memory_of: the device, or ``"process"``.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.measurable = device, True
        self.memory_of = str(device) if device.type == "cuda" else "process"
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            CLEAR.write_text(RESET_PEAK)
        except OSError:  # not Linux, or not allowed
            self.measurable = False

    def read(self) -> int | None:
        """The peak so far in bytes; None where the system does not tell."""
        if not self.measurable:
            return None
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        with suppress(OSError, ValueError):
            fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
            return 1024 * int(fields["VmHWM"].split()[0])
        return None


def cache_per_token(model: Any) -> float | None:
    """Bytes that the KV cache of a model, as it is patched, takes for each token; None where it keeps none."""
    try:
        few, many = (cache_bytes(model, tokens) for tokens in (FEW, MANY))
    except Exception:  # encoders, and models that take other inputs than tokens
        return None
    return (many - few) / (MANY - FEW) if many else None


@torch.no_grad()
def cache_bytes(model: Any, tokens: int) -> int:
    """Bytes of the KV cache after so many tokens."""
    ids = torch.zeros(1, tokens, dtype=torch.long, device=model.device)
    cache = getattr(model(input_ids=ids, use_cache=True), "past_key_values", None)
    found = {(tensor.data_ptr(), tensor.shape): tensor.nbytes for tensor in tensors_in(cache, set())}
    return sum(found.values())


def tensors_in(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """All tensors that an object holds, its parts included."""
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen and not isinstance(value, (str, bytes, torch.nn.Module, type)):
        seen.add(id(value))
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        for one in (*inner, *getattr(value, "__dict__", {}).values()):
            yield from tensors_in(one, seen)
