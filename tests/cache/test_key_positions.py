"""Positions of cached keys, when the cache is reordered, cropped, copied and continued."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, StaticCache

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import BackendCannotCarry, UnknownKeys

LENGTH = TRAINED_LENGTH


def text(rows: int = 1, length: int = LENGTH) -> Tensor:
    return torch.randint(3, 96, (rows, length), generator=torch.Generator().manual_seed(3))


def jumping(*jumps: int, length: int = LENGTH) -> Tensor:
    """Positions ``[row, token]``, one row for each jump in the middle of the text."""
    rows = torch.arange(length).repeat(len(jumps), 1)
    rows[:, length // 2 :] += torch.tensor(jumps)[:, None]
    return rows


@torch.no_grad()
def read(model: LlamaForCausalLM, ids: Tensor, positions: Tensor | None, cache: DynamicCache | None = None) -> Tensor:
    past = 0 if cache is None else int(cache.get_seq_length())
    mask = torch.ones(len(ids), past + ids.shape[1], dtype=torch.long)
    return model(
        ids, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=cache is not None
    ).logits


@pytest.mark.parametrize("scheme", ["alibi", "t5", "rerope", "dynamic_ntk"])
def test_positions_follow_the_rows_of_the_cache(scheme: str) -> None:
    model = patch_model(tiny_model("llama"), scheme, factor=4)
    ids, positions, first = text(2), jumping(3, 8), LENGTH - 4
    cache = DynamicCache(config=model.config)
    read(model, ids[:, :first], positions[:, :first], cache)
    changes = {
        "reorder_cache": (torch.tensor([1, 1, 0]), lambda rows: rows),
        "batch_select_indices": (torch.tensor([1]), lambda rows: rows),
        "batch_repeat_interleave": (2, lambda times: torch.arange(2).repeat_interleave(times)),
    }
    for change, (argument, rows_of) in changes.items():
        kept, rows = copy.deepcopy(cache), rows_of(argument)
        getattr(kept, change)(argument)
        after = read(model, ids[rows, first:], positions[rows, first:], kept)
        assert (after - read(model, ids, positions)[rows, first:]).abs().max() < 1e-4, change
    swapped = read(model, ids.flip(0)[:, first:], positions.flip(0)[:, first:], copy.deepcopy(cache))
    assert (swapped - read(model, ids, positions).flip(0)[:, first:]).abs().max() > 1e-2  # control


@pytest.mark.parametrize("remake", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_a_copied_cache_keeps_its_positions(remake: object) -> None:
    model = patch_model(tiny_model("llama"), "alibi", factor=4)
    ids, positions, first = text(), jumping(9), LENGTH - 4
    cache = DynamicCache(config=model.config)
    read(model, ids[:, :first], positions[:, :first], cache)
    twin = remake(cache)  # type: ignore[operator]
    assert type(twin.layers[0]).__name__ == type(cache.layers[0]).__name__
    whole = read(model, ids, positions)[:, first:]
    for one in (cache, twin):  # each has a record of its own
        assert (read(model, ids[:, first:], positions[:, first:], one) - whole).abs().max() < 1e-4


def test_tokens_added_by_other_code() -> None:
    model = patch_model(tiny_model("llama"), "alibi", factor=4)
    cache = DynamicCache(config=model.config)
    read(model, text()[:, :9], None, cache)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnknownKeys)
        read(model, text()[:, 9:12], None, cache)
    for layer, other in zip(cache.layers, _filled(model, 4).layers, strict=True):
        layer.update(other.keys, other.values)
    with pytest.warns(UnknownKeys, match="4 tokens that this model did not write"):
        read(model, text()[:, 16:], torch.arange(16, LENGTH)[None], cache)


def _filled(model: LlamaForCausalLM, tokens: int) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    read(model, text()[:, :tokens], None, cache)
    return cache


@pytest.mark.parametrize("scheme", ["sinks", "window", "lm_infinite"])
def test_positions_that_go_back_need_every_key(scheme: str) -> None:
    """A cache that keeps the recent keys has dropped what a query at an earlier position would see."""
    model = patch_model(tiny_model("llama"), scheme, factor=4)
    ids, back = text(length=2 * TRAINED_LENGTH), torch.arange(2 * TRAINED_LENGTH)[None] % 40
    cache = DynamicCache(config=model.config)
    read(model, ids[:, :40], back[:, :40], cache)
    with pytest.raises(BackendCannotCarry, match="position_ids go back"):
        read(model, ids[:, 40:41], back[:, 40:41], cache)
    whole = read(model, ids, back)
    kept = DynamicCache(config=model.config)  # with the configuration from the start, it keeps all keys
    first = read(model, ids[:, :50], back[:, :50], kept)
    rest = read(model, ids[:, 50:], back[:, 50:], kept)
    assert (torch.cat((first, rest), dim=1) - whole).abs().max() < 1e-4


@pytest.mark.parametrize("scheme", ["alibi", "rerope", "t5", "fox"])
def test_a_static_cache_is_filled_in_inference_mode_and_read_outside(scheme: str) -> None:
    """Memory that was made before the mode was entered is written to after it was left."""
    model, ids = patch_model(tiny_model("llama"), scheme, factor=2), text(length=12)
    config, cache = model.config, StaticCache(config=model.config, max_cache_len=LENGTH)
    width = config.hidden_size // config.num_attention_heads
    cache.early_initialization(1, config.num_key_value_heads, width, torch.float32, torch.device("cpu"))
    with torch.inference_mode():
        model(ids[:, :8], past_key_values=cache)
    with torch.no_grad():
        parts = [model(ids[:, at : at + 1], past_key_values=cache).logits for at in range(8, 12)]
        whole = model(ids, use_cache=False).logits
    torch.testing.assert_close(torch.cat(parts, dim=1), whole[:, 8:], atol=1e-4, rtol=0)
