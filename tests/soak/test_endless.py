"""A text without end under sinks: the cache stays as long as its window, the time of a token what it was."""

from __future__ import annotations

import time
from statistics import median

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from hf_posenc import patch_model

from .test_cycles import resident

SHORT = 3_000
MEMORY = 0.02  # share by which it may grow after the first tenth


def decode(tokens: int) -> tuple[list[float], list[int], int]:
    """Median seconds of a token and bytes of memory, a tenth each; entries of the cache at the end."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    model = patch_model(LlamaForCausalLM(config).eval(), "sinks", factor=1, sinks=2, recent=14)
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
    """Memory of each tenth of the tokens; their times are told, not judged."""
    seconds, memory, kept = decode(tokens)
    told = "\n".join(
        f"tenth {number}: {1e6 * each:6.0f} µs a token, {used >> 10:,} KiB"
        for number, (each, used) in enumerate(zip(seconds, memory, strict=True), 1)
    )
    with capsys.disabled():
        print(f"\n{tokens:,} tokens under sinks\n{told}")  # noqa: T201
    assert kept <= 32, "the cache keeps more than sinks and window"
    assert memory[-1] <= (1 + MEMORY) * memory[0], told
