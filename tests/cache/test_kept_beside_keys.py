"""What a cache keeps beside keys (positions, rotated copies, projected values) follows every change of the cache."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, StaticCache
from transformers.utils import logging

from hf_posenc import patch_model
from hf_posenc.checks import CHECKS, Case, assert_passes
from hf_posenc.checks.case import perturb_parameters
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


@pytest.mark.parametrize("scheme", ["fire", "transformer_xl", "deberta"])
def test_changed_weights_are_read_anew(scheme: str) -> None:
    """In a model of one layer, no key or value depends on the scheme's weights."""
    model = tiny_model("llama")
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:1], 1
    patch_model(model, scheme)
    perturb_parameters(model)
    ids, cache = text(), DynamicCache(config=model.config)
    read(model, ids[:, :-2], None, cache)
    read(model, ids[:, -2:-1], None, cache)
    before = read(model, ids, None)[:, -1:]
    model.load_state_dict({name: -w if "posenc" in name else w for name, w in model.state_dict().items()})
    whole = read(model, ids, None)[:, -1:]
    assert (whole - before).abs().max() > 1e-2  # control
    assert (read(model, ids[:, -1:], None, cache) - whole).abs().max() < 1e-4


def test_a_block_of_one_query_is_no_decoded_token() -> None:
    model, ids = patch_model(tiny_model("llama"), "fire", tau=8.0), text(length=129)  # blocks have 128 queries
    perturb_parameters(model)
    cached = read(model, ids, None, DynamicCache(config=model.config))
    assert (cached - read(model, ids, None)).abs().max() < 1e-4


def test_tokens_added_by_other_code() -> None:
    model = patch_model(tiny_model("llama"), "alibi", factor=4)
    cache, others = DynamicCache(config=model.config), DynamicCache(config=model.config)
    read(model, text()[:, :9], None, cache)
    read(model, text()[:, :4], None, others)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnknownKeys)
        read(model, text()[:, 9:12], None, cache)
    for layer, other in zip(cache.layers, others.layers, strict=True):
        layer.update(other.keys, other.values)
    with pytest.warns(UnknownKeys, match="4 tokens that this model did not write"):
        read(model, text()[:, 16:], torch.arange(16, LENGTH)[None], cache)


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


def test_reordering_discards_the_rotated_copy() -> None:
    assert_passes("cache_reorder", Case("llama", "dynamic_ntk", factor=4, granularity=8))


CHANGES = {
    "crop": lambda cache: cache.crop(-3),
    "crop and repeat": lambda cache: (cache.crop(-3), cache.batch_repeat_interleave(1)),
    "crop one by one": lambda cache: [cache.crop(-1) for _ in range(3)],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("granularity", [1, 4, 16, 64])
def test_other_tokens_behind_a_cropped_text(granularity: int, change: str) -> None:
    """As assisted decoding does it: what was guessed wrong goes, and other tokens come in its place.

    Within one step of lengths nothing else tells the layer that its copy of the keys is of a text nobody reads.
    """
    model = patch_model(tiny_model("llama"), "dynamic_ntk", granularity=granularity, factor=4)
    first, other = text(length=TRAINED_LENGTH + 9), text(length=TRAINED_LENGTH + 20).flip(1)
    kept = TRAINED_LENGTH + 6
    both = torch.cat((first[:, :kept], other[:, : TRAINED_LENGTH + 14 - kept]), dim=1)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(first[:, : TRAINED_LENGTH + 2], past_key_values=cache)
        for t in range(TRAINED_LENGTH + 2, TRAINED_LENGTH + 9):
            model(first[:, t : t + 1], past_key_values=cache)
        CHANGES[change](cache)
        assert cache.get_seq_length() == kept
        decoded = [model(both[:, t : t + 1], past_key_values=cache).logits for t in range(kept, TRAINED_LENGTH + 14)]
        whole = model(both, use_cache=False).logits[:, kept:]
        unchanged = model(first, use_cache=False).logits[:, kept : TRAINED_LENGTH + 9]
    assert (torch.cat(decoded, dim=1) - whole).abs().max() < 1e-4
    assert (whole[:, : unchanged.shape[1]] - unchanged).abs().max() > 0.1  # control: other tokens are another text


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_the_gradient_through_decoded_tokens_is_that_of_one_pass(backend: str) -> None:
    """Runs of queries are recomputed in the backward pass, when a rotated copy of the keys would have grown."""
    model, tokens = patch_model(tiny_model("llama"), "dynamic_ntk", factor=4), text(length=TRAINED_LENGTH + 6)
    model.set_attn_implementation(backend)
    weight = model.model.layers[0].self_attn.k_proj.weight
    cache = DynamicCache(config=model.config)
    sizes = (TRAINED_LENGTH + 2, 1, 1, 1, 1)
    parts = [model(part, past_key_values=cache).logits for part in tokens.split(sizes, dim=1)]
    (decoded,) = torch.autograd.grad(torch.cat(parts, dim=1).square().mean(), weight)
    (whole,) = torch.autograd.grad(model(tokens, use_cache=False).logits.square().mean(), weight)
    assert (decoded - whole).abs().max() < 1e-4 * whole.abs().max()


logging.set_verbosity_error()
SCHEMES = ("transformer_xl", "deberta")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_schemes_of_a_kind_keep_their_own(scheme: str) -> None:
    """Across several growths of what is kept."""
    deviation = CHECKS["cache"](Case("llama", f"{scheme}+{scheme}"), cut=20, step=1)
    assert not deviation.failed, deviation


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_a_new_text_in_an_old_cache_reads_the_weights_anew(scheme: str) -> None:
    model, cache = patched(scheme), DynamicCache()
    model(text(length=30), past_key_values=cache)
    before = model(text(length=12), use_cache=False).logits
    for parameter in model.parameters():
        parameter.data.mul_(1.25)  # leaves no trace in the version counter
    cache.crop(-30)
    parts = [model(part, past_key_values=cache).logits for part in text(length=12).split(1, dim=1)]
    after = model(text(length=12), use_cache=False).logits
    assert (after - before).abs().max() > 1e-3
    assert (torch.cat(parts, 1) - after).abs().max() < 1e-4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_is_kept_where_a_gradient_is_wanted(scheme: str) -> None:
    model, cache = patched(scheme), DynamicCache()
    with torch.no_grad():
        model(text(length=10), past_key_values=cache)
    model(text(length=1), past_key_values=cache).logits.sum().backward()
    learned = [parameter.grad for name, parameter in model.named_parameters() if "posenc" in name]
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in learned)


def patched(scheme: str) -> LlamaForCausalLM:
    model = patch_model(tiny_model("llama"), scheme)
    perturb_parameters(model)
    return model
