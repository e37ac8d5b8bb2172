"""Endless decoding under sinks: the cache keeps its size, and a token its time."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from hf_posenc import patch_model

from .test_cycles import resident

pytestmark = pytest.mark.slow

SHORT = 3_000
LATE = 10**6
MEMORY = 0.02  # share by which it may grow after the first tenth


def under_sinks() -> LlamaForCausalLM:
    """A very small model that keeps 16 keys."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    return patch_model(LlamaForCausalLM(config).eval(), "sinks", factor=1, sinks=2, recent=14)


def decode(tokens: int) -> tuple[list[float], list[int], int]:
    """Median seconds of a token and bytes of memory, a tenth each; entries of the cache at the end."""
    model = under_sinks()
    cache, token = DynamicCache(config=model.config), torch.tensor([[3]])
    seconds, memory = [], []
    with torch.inference_mode():
        for _ in range(10):
            times = []
            for _ in range(tokens // 10):
                started = time.perf_counter()
                out = model(token, past_key_values=cache, use_cache=True)
                times.append(time.perf_counter() - started)
                token = out.logits[:, -1:].argmax(-1)
            assert out.logits.isfinite().all()
            seconds.append(median(times))
            memory.append(resident())
    return seconds, memory, cache.layers[0].keys.shape[-2]


@pytest.mark.parametrize("tokens", [SHORT, pytest.param(1_000_000, marks=pytest.mark.full)])
def test_decoding_stays_flat(tokens: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory of each tenth of the tokens; their times are printed, not asserted."""
    seconds, memory, kept = decode(tokens)
    summary = "\n".join(
        f"tenth {number}: {1e6 * each:6.0f} µs a token, {used >> 10:,} KiB"
        for number, (each, used) in enumerate(zip(seconds, memory, strict=True), 1)
    )
    with capsys.disabled():
        print(f"\n{tokens:,} tokens under sinks\n{summary}")  # noqa: T201
    assert kept <= 32, "the cache keeps more than sinks and window"
    assert memory[-1] <= (1 + MEMORY) * memory[0], summary


class Largest(TorchDispatchMode):
    """The elements of the largest tensor any operator returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def test_a_late_token_costs_what_an_early_one_does() -> None:
    """No tensor grows with what was read and dropped; it took 1.4 times as long when one did."""
    model, token = under_sinks(), torch.tensor([[3]])
    cache = DynamicCache(config=model.config)
    sizes = []
    with torch.inference_mode():
        for late in (0, LATE):
            for _ in range(40):
                model(token, past_key_values=cache, use_cache=True)
            cache.layers[0].total += late
            model(token, past_key_values=cache, use_cache=True)
            with Largest() as seen:
                model(token, past_key_values=cache, use_cache=True)
            sizes.append(seen.elements)
    assert cache.get_seq_length() > LATE, "control: they were read, as far as the cache knows"
    assert sizes[0] == sizes[1]
