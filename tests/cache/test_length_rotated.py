"""Dynamic NTK in steps of lengths: within a step, decoding rotates only the new key."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model

STEP = 8


def text(length: int) -> torch.Tensor:
    return torch.randint(3, 96, (1, length), generator=torch.Generator().manual_seed(5))


def test_reordering_discards_the_rotated_copy() -> None:
    model = patch_model(tiny_model("llama"), "dynamic_ntk", granularity=STEP, factor=4)
    rows_of_text = torch.cat((text(TRAINED_LENGTH + 6), text(TRAINED_LENGTH + 6).flip(1)))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        for t in range(TRAINED_LENGTH + 4):
            model(rows_of_text[:, t : t + 1], past_key_values=cache)
        cache.reorder_cache(torch.tensor([1, 0]))
        after = model(rows_of_text.flip(0)[:, TRAINED_LENGTH + 4 : TRAINED_LENGTH + 5], past_key_values=cache).logits
        whole = model(rows_of_text.flip(0)[:, : TRAINED_LENGTH + 5]).logits[:, -1:]
    assert (after - whole).abs().max() < 1e-4


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
    first, other = text(TRAINED_LENGTH + 9), text(TRAINED_LENGTH + 20).flip(1)
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
    model, tokens = patch_model(tiny_model("llama"), "dynamic_ntk", factor=4), text(TRAINED_LENGTH + 6)
    model.set_attn_implementation(backend)
    weight = model.model.layers[0].self_attn.k_proj.weight
    cache = DynamicCache(config=model.config)
    sizes = (TRAINED_LENGTH + 2, 1, 1, 1, 1)
    parts = [model(part, past_key_values=cache).logits for part in tokens.split(sizes, dim=1)]
    (decoded,) = torch.autograd.grad(torch.cat(parts, dim=1).square().mean(), weight)
    (whole,) = torch.autograd.grad(model(tokens, use_cache=False).logits.square().mean(), weight)
    assert (decoded - whole).abs().max() < 1e-4 * whole.abs().max()
