"""KV-cache eviction: which keys are held, outputs, and refusals."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from hf_posenc import patch_model
from hf_posenc.cache.eviction import EvictingLayer
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import BackendCannotCarry

from ..families.tiny import tiny

HELD = {"sinks": 32, "lm_infinite": 42, "window": 32}  # sinks + recent, n_global + n_local, size


def text(length: int, rows: int = 1) -> torch.Tensor:
    return torch.randint(3, 96, (rows, length), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("scheme", HELD)
def test_memory_stays_what_the_scheme_needs(scheme: str) -> None:
    model = patch_model(tiny_model("llama"), scheme, factor=8)
    cache, sizes = DynamicCache(config=model.config), []
    with torch.no_grad():
        for token in text(6 * TRAINED_LENGTH).T[..., None]:
            model(token, past_key_values=cache)
            sizes.append(cache.layers[0].keys.shape[2])
    assert max(sizes) == sizes[-1] == HELD[scheme]
    assert cache.get_seq_length() == 6 * TRAINED_LENGTH


@torch.no_grad()
def read_in_pieces(model: PreTrainedModel, sizes: list[int]) -> DynamicCache:
    """A left-padded text and one beside it, onto one cache; their logits must be those of each alone."""
    ids, pads, cache, parts = text(sum(sizes), rows=2), 19, DynamicCache(config=model.config), []
    mask = torch.ones_like(ids)
    mask[0, :pads] = 0
    for part, end in zip(ids.split(sizes, dim=1), accumulate(sizes), strict=True):
        parts.append(model(part, attention_mask=mask[:, :end], past_key_values=cache).logits)
    together = torch.cat(parts, dim=1)
    assert (together[:1, pads:] - model(ids[:1, pads:]).logits).abs().max() < 1e-4
    assert (together[1:] - model(ids[1:]).logits).abs().max() < 1e-4
    return cache


@pytest.mark.parametrize("scheme", ["sinks", "lm_infinite"])
def test_chunks_in_a_left_padded_batch(scheme: str) -> None:
    """Rows of unequal length, read in chunks onto a cache that has forgotten, equal each row alone."""
    cache = read_in_pieces(patch_model(tiny_model("llama"), scheme, factor=4), [13] * 9 + [11])
    assert cache.layers[0].gaps


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("scheme", ["sinks", "window"])
def test_a_layer_that_keeps_all_keys_beside_layers_that_forget(scheme: str, backend: str) -> None:
    """Its mask is made anew, as those of transformers fit the others; `eager` adds a mask, so true is no 1 there."""
    model = patch_model(tiny_model("llama"), scheme, layers={"1": "none"}, factor=4)
    model.set_attn_implementation(backend)
    cache = read_in_pieces(model, [60, 5, 5, *[1] * 26])
    assert cache.layers[0].gaps
    assert not isinstance(cache.layers[1], EvictingLayer)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize(
    "scheme", [{"scheme": "window", "size": 20}, {"scheme": "sinks"}, {"scheme": "window", "layers": {"1": "none"}}]
)
def test_a_models_own_window_stays_where_keys_were_dropped(scheme: dict, chunk: int, backend: str) -> None:
    """`DynamicCache()` knows no window, so that what it keeps is more than the model's own lets a query see."""
    sizes = {"num_hidden_layers": 2, "max_position_embeddings": TRAINED_LENGTH}
    model = patch_model(tiny("mistral", sliding_window=7, **sizes), **scheme, factor=4)
    model.set_attn_implementation(backend)
    ids, cache = text(2 * TRAINED_LENGTH), DynamicCache()
    with torch.no_grad():
        parts = [model(part, past_key_values=cache).logits for part in ids.split(chunk, dim=1)]
        whole = model(ids, use_cache=False).logits
    assert any(layer.gaps for layer in cache.layers if isinstance(layer, EvictingLayer))
    assert (torch.cat(parts, dim=1) - whole).abs().max() < 1e-4


def test_evicted_keys_cannot_be_restored() -> None:
    model = patch_model(tiny_model("llama"), "sinks", factor=4)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(text(2 * TRAINED_LENGTH), past_key_values=cache)
    with pytest.raises(BackendCannotCarry, match=r"dropped keys \(33 of \d+ here\) cannot be cropped"):
        cache.crop(-1)


def test_a_learned_sink_with_eviction() -> None:
    """gpt-oss: one more logit in the softmax, and its column dropped."""
    model = patch_model(tiny_model("llama"), "sinks", learned_logit=True, sinks=0, recent=4 * TRAINED_LENGTH, factor=4)
    ids = text(TRAINED_LENGTH)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.posenc.parts[1].logits.fill_(-1e4)
        nothing = model(ids).logits
        assert (nothing - tiny_model("llama")(ids).logits).abs().max() < 1e-4
        for layer in model.model.layers:
            layer.self_attn.posenc.parts[1].logits.fill_(50.0)
        model.model.layers[0].self_attn.o_proj.register_forward_hook(lambda m, args, out: seen.append(args[0]))
        seen: list[torch.Tensor] = []
        model(ids)
    assert seen[0].abs().max() < 1e-6  # everything went to the sinks


def test_an_emptied_cache_takes_any_text_that_a_new_one_takes() -> None:
    """Padding on the right, and less padding on the left than before, after texts of another form."""
    model, ids = patch_model(tiny_model("llama"), "sinks", recent=16), text(36, rows=2)
    right, left = torch.ones_like(ids), torch.ones_like(ids)
    right[1, 28:], left[1, :9] = 0, 0
    cache = DynamicCache()
    with torch.no_grad():
        for mask, row in ((left, slice(9, None)), (right, slice(28)), (torch.ones_like(ids), slice(None))):
            found = model(ids, attention_mask=mask, past_key_values=cache).logits[1:, row]
            alone = model(ids[1:, row], use_cache=False).logits
            torch.testing.assert_close(found, alone, atol=1e-4, rtol=0)
            fresh = DynamicCache()
            model(ids, attention_mask=mask, past_key_values=fresh)
            assert [type(one) for one in cache.layers[1:]] == [type(one) for one in fresh.layers[1:]]
            assert cache.layers[0].keys.shape == fresh.layers[0].keys.shape
            cache.reset()
