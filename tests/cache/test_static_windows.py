"""Caches whose first layer is not like the others, or whose layers all drop keys: sliding windows and hybrids.

The reference is the same text, or the same generation, without a cache.
"""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import Cache

from hf_posenc import patch_model
from hf_posenc.errors import InvalidInput, MaskMismatch

from ..families.tiny import tiny

WINDOW = 8


@pytest.mark.parametrize("scheme", ["alibi", "dynamic_ntk", "fox"])
@pytest.mark.parametrize("prompt", [WINDOW - 3, 20], ids=["inside the window", "past the window"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left padding"])
def test_generation_with_a_static_cache_equals_none(scheme: str, prompt: int, padded: bool) -> None:
    """`generate` passes a mask for each kind of layer, and the widest is as wide as the layers that see all keys."""
    model = patch_model(tiny("gemma3_text", sliding_window=WINDOW), scheme, factor=2)
    assert_static_equals_uncached(model, prompt, padded=padded)


@pytest.mark.parametrize("scheme", ["alibi", "rerope", "sinks"])
@pytest.mark.parametrize("prompt", [WINDOW - 1, WINDOW + 1, 20])
def test_generation_where_every_layer_has_a_window(scheme: str, prompt: int) -> None:
    """Then `generate` passes one mask, as wide as the window."""
    model = patch_model(tiny("mistral", sliding_window=WINDOW), scheme, factor=2)
    assert_static_equals_uncached(model, prompt, padded=prompt == 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["falcon_h1", "zamba2"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left padding"])
def test_generation_where_a_layer_mixes_tokens_in_two_ways(name: str, padded: bool) -> None:
    """Such a layer is called `hybrid`, and its masks are named after its parts."""
    assert_static_equals_uncached(patch_model(tiny(name), "alibi"), 12, padded=padded)


def assert_static_equals_uncached(model: PreTrainedModel, prompt: int, *, padded: bool) -> None:
    """Tokens and logits of generation with a static cache are those without a cache."""
    tokens = torch.randint(3, 97, (2, prompt), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    if padded:
        tokens[0, :2], mask[0, :2] = 0, 0
    model.generation_config.eos_token_id = None
    model.generation_config.disable_compile = True
    settings = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    settings |= {"output_logits": True, "return_dict_in_generate": True}
    uncached = model.generate(tokens, use_cache=False, **settings)
    static = model.generate(tokens, cache_implementation="static", **settings)
    assert torch.equal(static.sequences, uncached.sequences)
    torch.testing.assert_close(torch.stack(static.logits), torch.stack(uncached.logits), atol=1e-4, rtol=1e-4)


# A window, a state space, and linear attention come first.
HYBRID = ["gemma3_text", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jamba", "qwen3_next"))]


@pytest.mark.parametrize("name", HYBRID)
def test_a_full_static_cache_is_refused(name: str) -> None:
    """Whatever its first layer is, by which the others cannot be judged."""
    model = patch_model(tiny(name, sliding_window=WINDOW), "alibi")
    cache, tokens = StaticCache(config=model.config, max_cache_len=16), torch.arange(3, 21)[None]
    model(tokens[:, :14], past_key_values=cache)
    with pytest.raises(InvalidInput, match="room for 16 tokens, and holds 14"):
        model(tokens[:, 14:], past_key_values=cache)


def test_a_static_cache_shorter_than_the_window_is_refused_when_full() -> None:
    """It would drop keys that the window still reaches; nothing is dropped up to then."""
    model = patch_model(tiny("mistral", sliding_window=WINDOW), "alibi")
    cache, tokens = StaticCache(config=model.config, max_cache_len=WINDOW - 2), torch.arange(3, 15)[None]
    held = model(tokens[:, : WINDOW - 2], past_key_values=cache).logits
    torch.testing.assert_close(held, model(tokens[:, : WINDOW - 2], use_cache=False).logits, atol=1e-4, rtol=1e-4)
    with pytest.raises(InvalidInput, match="sliding window of this model is 8 tokens wide"):
        model(tokens[:, WINDOW - 2 : WINDOW - 1], past_key_values=cache)


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "rerope"])
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_a_mask_of_four_axes_over_a_cache_that_dropped_keys(scheme: str, static: bool) -> None:
    """It has a column for every key that is held; one for every token may show what was dropped, and is refused."""
    model = patch_model(tiny("mistral", sliding_window=WINDOW), scheme, factor=2)
    tokens = torch.randint(3, 97, (2, 20), generator=torch.Generator().manual_seed(1))
    cache: Cache = StaticCache(config=model.config, max_cache_len=40) if static else DynamicCache(config=model.config)
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits[:, 12:15]
        model(tokens[:, :12], past_key_values=cache)
        distance = torch.arange(12, 15)[:, None] - torch.arange(15)
        mask = ((distance >= 0) & (distance < WINDOW)).expand(2, 1, -1, -1)
        with pytest.raises(MaskMismatch, match="10 keys"):
            model(tokens[:, 12:15], past_key_values=cache, attention_mask=mask)
        held = mask[..., -(WINDOW - 1 + 3) :]
        found = model(tokens[:, 12:15], past_key_values=cache, attention_mask=held).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
