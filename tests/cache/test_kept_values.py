"""What a scheme projects from its weights is kept with a KV cache: projected once a text, never from old weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import DynamicCache, LlamaForCausalLM
from transformers.utils import logging

from hf_posenc import patch_model
from hf_posenc.checks import CHECKS, Case
from hf_posenc.checks.tiny_models import tiny_model

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
    model(tokens(30), past_key_values=cache)
    before = model(tokens(12), use_cache=False).logits
    for parameter in model.parameters():
        parameter.data.mul_(1.25)  # leaves no trace in the version counter
    cache.crop(-30)
    parts = [model(part, past_key_values=cache).logits for part in tokens(12).split(1, dim=1)]
    after = model(tokens(12), use_cache=False).logits
    assert (after - before).abs().max() > 1e-3
    assert (torch.cat(parts, 1) - after).abs().max() < 1e-4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_is_kept_where_a_gradient_is_wanted(scheme: str) -> None:
    model, cache = patched(scheme), DynamicCache()
    with torch.no_grad():
        model(tokens(10), past_key_values=cache)
    model(tokens(1), past_key_values=cache).logits.sum().backward()
    learned = [parameter.grad for name, parameter in model.named_parameters() if "posenc" in name]
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in learned)


def patched(scheme: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = tiny_model("llama")
    patch_model(model, scheme)
    for name, parameter in model.named_parameters():
        if "posenc" in name:
            nn.init.normal_(parameter, std=0.5)
    return model.eval()


def tokens(length: int) -> torch.Tensor:
    return torch.randint(0, 90, (1, length), generator=torch.Generator().manual_seed(length))
