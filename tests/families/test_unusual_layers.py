"""Layers that call their attention in ways of their own, each with a scheme that a wrong answer would show under."""

from __future__ import annotations

import pytest
import torch

from hf_posenc import patch_model
from hf_posenc.errors import UnsupportedModel

from . import test_families
from .tiny import tiny, tiny_encoder_decoder


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("stablelm", "sinks"),  # hands on no keyword, so that attention looks its forward pass up
        ("nemotron", "fox"),
        ("zamba", "alibi"),  # attention takes twice the width, and is told the number of its layer in each call
        ("zamba2", "t5"),
        ("zaya", "self_extend"),  # a dictionary of masks, one of them for a convolution; layers with a window beside
        ("zaya", "sinks"),
        ("beam", "alibi"),  # a factor of positions, and layers that count themselves
    ],
)
def test_every_way_to_read_a_text(name: str, scheme: str) -> None:
    test_families.test_every_way_to_read_a_text(name, scheme)


@pytest.mark.parametrize("scheme", ["none", "alibi", "host", "yarn"])
@pytest.mark.parametrize("layers", [2, 3])
def test_a_narrow_window_in_the_last_layer_is_no_decoder(layers: int, scheme: str) -> None:
    """It hides the last token from the first one, as a decoder does."""
    own = {"num_hidden_layers": layers, "global_attn_every_n_layers": layers, "local_attention": 8}
    model, ids = tiny("modernbert", masked=True, **own), torch.randint(5, 97, (1, 30))
    other = ids.clone()
    other[0, -1] = 98
    padded, real = torch.cat((ids, torch.zeros(1, 10).long()), dim=1), (torch.arange(40) < 30).long()[None]
    patch_model(model, scheme, factor=2)
    with torch.no_grad():
        first = [model.model(x, output_hidden_states=True).hidden_states[1][0, 0] for x in (ids, other)]
        alone, beside = model(ids).logits, model(padded, attention_mask=real).logits[:, :30]
    assert not torch.equal(*first), "the first layer has no window"
    torch.testing.assert_close(beside, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("use_cache", [False, True])
def test_prompts_are_refused(use_cache: bool) -> None:
    """They are keys of no token; without them the model is read."""

    def read(prompts: bool) -> torch.Tensor:
        model = tiny_encoder_decoder("mvp", use_prompt=prompts, prompt_length=5, prompt_mid_dim=16)
        ids = torch.randint(5, 98, (1, 20))
        patch_model(model, "alibi", factor=2)
        return model(input_ids=ids, decoder_input_ids=ids, use_cache=use_cache).logits

    assert read(prompts=False).isfinite().all()
    with pytest.raises(UnsupportedModel, match="attends to 25 keys where 20 tokens are in reach"):
        read(prompts=True)
