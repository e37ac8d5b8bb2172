"""Models of float64 under both attention backends of transformers, and boolean and integer masks."""

from __future__ import annotations

import pytest
import torch

import hf_posenc
from hf_posenc.checks.case import perturb_parameters
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.reference_model import use_reference_attention
from hf_posenc.checks.tiny_models import tiny_model

LENGTH = 24
EACH = ("alibi", "cope", "deberta", "fox", "logn", "rerope", "shaw", "sinks", "t5", "transformer_xl", "wavelet", "yarn")


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("scheme", EACH)
def test_float64(scheme: str, backend: str) -> None:
    """The same as float32 but for float32's rounding, as the dense formula has it, and with gradients."""
    model = tiny_model("llama").double()
    model.set_attn_implementation(backend)
    perturb_parameters(hf_posenc.patch_model(model, scheme, factor=4))
    tokens = random_tokens(model, LENGTH)
    wide = forward(model, tokens)
    with use_reference_attention(model, torch.arange(LENGTH)[None]):
        torch.testing.assert_close(wide, forward(model, tokens), rtol=0, atol=1e-5)
    assert model(tokens).logits.dtype is torch.float64
    model.train()(tokens, labels=tokens).loss.backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)
    torch.testing.assert_close(forward(model.float(), tokens), wide, rtol=0, atol=1e-4)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("scheme", ["rope", "alibi"])
def test_boolean_and_integer_masks_are_equal(scheme: str, backend: str) -> None:
    """``eager`` would add the ones of a bool mask to the scores; the text masked is a window of five tokens."""
    model = hf_posenc.patch_model(tiny_model("llama"), scheme)
    model.set_attn_implementation(backend)
    tokens = random_tokens(model, LENGTH)
    seen = torch.ones(LENGTH, LENGTH).tril().triu(-4).bool()[None, None]
    windowed = hf_posenc.patch_model(tiny_model("llama"), f"{scheme}+window", size=5)
    expected = forward(windowed, tokens)
    for dtype in (torch.float16, torch.float32, torch.float64):
        added = torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
        torch.testing.assert_close(forward(model, tokens, attention_mask=added), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(forward(model, tokens, attention_mask=seen), expected, rtol=0, atol=1e-4)


def test_one_row_masks_every_row() -> None:
    model = hf_posenc.patch_model(tiny_model("llama"), "alibi")
    tokens, mask = random_tokens(model, LENGTH, rows=2), torch.ones(1, LENGTH)
    mask[:, :3] = 0
    both = forward(model, tokens, attention_mask=mask.expand(2, -1))
    assert torch.equal(forward(model, tokens, attention_mask=mask), both)


@pytest.mark.parametrize("scheme", ["alibi", "sinusoidal", "yarn"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_narrow_positions_are_whole_numbers(scheme: str, dtype: torch.dtype) -> None:
    """Differences of uint8 wrap, and 0 after 255 would be a step of one."""
    model = hf_posenc.patch_model(tiny_model("llama"), scheme, factor=16)
    tokens = random_tokens(model, 2)
    positions = torch.tensor([[127 if dtype is torch.int16 else 255, 0]], dtype=torch.int64)
    expected = forward(model, tokens, position_ids=positions)
    assert torch.equal(forward(model, tokens, position_ids=positions.to(dtype)), expected)
    assert not torch.equal(forward(model, tokens), expected)
