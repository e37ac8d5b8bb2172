"""Layers that call their attention in ways of their own, each with a scheme that a wrong answer would show under."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    ModernBertConfig,
    ModernBertForMaskedLM,
    MvpConfig,
    MvpForConditionalGeneration,
)

from hf_posenc import patch_model
from hf_posenc.errors import UnsupportedModel

from . import test_families
from .tiny import tiny


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
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64, pad_token_id=0, global_attn_every_n_layers=layers, local_attention=8,
    )  # fmt: skip
    model = ModernBertForMaskedLM(config).eval()
    ids = torch.randint(5, 99, (1, 30))
    other = ids.clone()
    other[0, -1] = 99
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
        config = MvpConfig(
            vocab_size=100, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
            use_prompt=prompts, prompt_length=5, prompt_mid_dim=16,
        )  # fmt: skip
        model, ids = MvpForConditionalGeneration(config).eval(), torch.randint(5, 100, (1, 20))
        patch_model(model, "alibi", factor=2)
        return model(input_ids=ids, decoder_input_ids=ids, use_cache=use_cache).logits

    assert read(prompts=False).isfinite().all()
    with pytest.raises(UnsupportedModel, match="attends to 25 keys where 20 tokens are in reach"):
        read(prompts=True)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("deepseek_v32", {}, "indices"),  # keys chosen by a second query, which is rotated
        ("glm_moe_dsa", {}, "indices"),
        ("hy_v4", {}, "indices"),
        ("deepseek_v4", {}, "keys where"),  # keys of several tokens
        ("inkling_text", {}, "position_bias"),  # profiles of the distance, mixed by content
        ("gemma3n_text", {"num_kv_shared_layers": 2}, "num_kv_shared_layers=2"),
    ],
)
def test_other_attention_is_refused_for_its_reason(name: str, options: dict[str, int], why: str) -> None:
    if name not in CONFIG_MAPPING:
        pytest.skip(f"no {name} in this transformers")
    with pytest.raises(UnsupportedModel, match=why):
        patch_model(tiny(name, **options), "alibi")
    if options:  # control: without it the family is patched
        patch_model(tiny(name), "alibi")
