"""A static cache of a model whose first layer has a sliding window: layers hold different numbers of keys.

The reference is the same generation without a cache.
"""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel

from hf_posenc import patch_model

WINDOW = 8


def mixed_model() -> PreTrainedModel:
    """Random weights, large enough that position shows in the logits."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=24,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        pad_token_id=0,
        eos_token_id=None,
    )
    model = Gemma3ForCausalLM(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim >= 2:
                weights.mul_(5)
    return model


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "rerope", "dynamic_ntk", "fox", "sinks"])
@pytest.mark.parametrize("prompt", [WINDOW - 3, 20], ids=["inside the window", "past the window"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left padding"])
def test_generation_with_a_static_cache_equals_none(scheme: str, prompt: int, padded: bool) -> None:
    """`generate` passes a mask for each kind of layer, and the widest is as wide as the layers that see all keys."""
    model = patch_model(mixed_model(), scheme, target_length=96)
    tokens = torch.randint(3, 97, (2, prompt), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    if padded:
        tokens[0, :2], mask[0, :2] = 0, 0
    settings = {
        "attention_mask": mask,
        "max_new_tokens": 12,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    uncached = model.generate(tokens, use_cache=False, **settings)
    static = model.generate(tokens, cache_implementation="static", **settings)
    assert torch.equal(static.sequences, uncached.sequences)
    torch.testing.assert_close(torch.stack(static.logits), torch.stack(uncached.logits), atol=1e-4, rtol=1e-4)
