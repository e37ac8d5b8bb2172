"""A scheme set aside for a while: the model is the unpatched one inside, and exactly as before afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_posenc import describe, from_pretrained, is_patched, load_starter, patch_model, unpatch_model
from hf_posenc.patching.patch import scheme_set_aside

TEXT = torch.randint(3, 90, (1, 300), generator=torch.Generator().manual_seed(0))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TEXT).logits


@pytest.mark.parametrize("scheme", ["yarn", "t5", "dca"])
@pytest.mark.parametrize("inside", ["rerope", "fire", None])
def test_the_scheme_comes_back_with_its_parameters(scheme: str, inside: str | None, tmp_path) -> None:
    model, _ = load_starter("llama")
    plain = logits(model)
    patch_model(model, scheme, factor=4)
    for name, weight in model.named_parameters():
        if "posenc" in name:
            weight.data.add_(torch.randn_like(weight))  # learned since
    want, names = logits(model), list(model.state_dict())
    with scheme_set_aside(model):
        assert not is_patched(model)
        assert torch.equal(logits(model), plain)
        if inside is not None:
            patch_model(model, inside, factor=2)
            assert not torch.equal(logits(model), want)
    assert describe(model).scheme == scheme
    assert torch.equal(logits(model), want)
    assert list(model.state_dict()) == names
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(from_pretrained(tmp_path)), want)
    assert torch.equal(logits(unpatch_model(model)), plain)


def test_an_error_inside_brings_it_back_as_well() -> None:
    model, _ = load_starter("llama")
    patch_model(model, "t5", factor=4)
    want = logits(model)
    with pytest.raises(KeyError), scheme_set_aside(model):
        raise KeyError
    assert torch.equal(logits(model), want)


def test_an_unpatched_model_is_unpatched_again() -> None:
    model, _ = load_starter("llama")
    plain = logits(model)
    with scheme_set_aside(model):
        patch_model(model, "yarn", factor=2)
        assert describe(model).scheme == "yarn"
    assert not is_patched(model)
    assert torch.equal(logits(model), plain)
