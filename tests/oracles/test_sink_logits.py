"""``sink_logits`` against the attention of transformers' gpt-oss with the same sinks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from hf_posenc import describe, patch_model
from hf_posenc.schemes.attention_scale.sink_logits import SinkLogits

from ..families.tiny import tiny, tokens
from . import models

LENGTH = 40
IDS, PADDED = tokens(LENGTH), torch.tensor([[0] * 11 + [1] * 29, [1] * 40])
DECODERS = ("llama", "qwen3", "gemma3_text", "gpt2")  # of which gemma3_text has windows in some layers
ENCODERS = ("bert", "modernbert")  # and so has modernbert


def built(name: str) -> Any:
    return tiny(name, masked=name in ENCODERS)


def sinks_of(layer: int, heads: int) -> Tensor:
    return 2 * torch.randn(heads, generator=torch.Generator().manual_seed(layer))


def parts(model: nn.Module) -> list[SinkLogits]:
    return [module for module in model.modules() if isinstance(module, SinkLogits)]


def with_sinks(model: nn.Module) -> Any:
    """A patched model, with sinks as large as its scores."""
    for number, part in enumerate(parts(model)):
        part.a.data = sinks_of(number, len(part.a)) - part.init
    return model


def of_gpt_oss(model: Any) -> Any:
    """An unpatched model under gpt-oss's attention function, with the same sinks."""
    ALL_ATTENTION_FUNCTIONS.register("of_gpt_oss", eager_attention_forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register("of_gpt_oss", eager_mask)
    for number, module in enumerate(attention_of(model)):
        module.sinks = nn.Parameter(sinks_of(number, model.config.num_attention_heads))
        module.num_key_value_groups = getattr(module, "num_key_value_groups", 1)
    model.config._attn_implementation = "of_gpt_oss"
    return model


def attention_of(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "is_causal")]


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
def test_as_gpt_oss(name: str, padded: bool, backend: str) -> None:
    """Logits, and the gradients of sinks and embeddings."""
    given = {"attention_mask": PADDED} if padded else {}
    if padded and name in ("gpt2", "bert"):  # which number columns, if not told otherwise
        given["position_ids"] = (PADDED.cumsum(-1) - 1).clamp(min=0)
    real = PADDED.bool() if padded else torch.ones_like(IDS, dtype=torch.bool)
    ours, theirs = with_sinks(patch_model(built(name), "sink_logits")), of_gpt_oss(built(name))
    ours.set_attn_implementation(backend)
    found, wanted = (model(IDS, **given).logits[real] for model in (ours, theirs))
    assert (found - wanted).abs().max() < 1e-4
    assert (built(name)(IDS, **given).logits[real] - wanted).abs().max() > 0.02  # control
    for logits in (found, wanted):
        logits.square().mean().backward()
    for one, two in zip(parts(ours), attention_of(theirs), strict=True):
        torch.testing.assert_close(one.a.grad, two.sinks.grad, atol=1e-6, rtol=1e-3)
    one, two = (model.get_input_embeddings().weight.grad for model in (ours, theirs))
    torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("name", DECODERS)
def test_token_by_token(name: str) -> None:
    model = with_sinks(patch_model(built(name), "sink_logits"))
    with torch.no_grad():
        assert (models.in_pieces(model, IDS, 30, 37) - model(IDS).logits).abs().max() < 1e-4


@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
def test_starts_as_the_model_was(name: str) -> None:
    model = patch_model(built(name), "sink_logits")
    with torch.no_grad():
        assert (model(IDS).logits - built(name)(IDS).logits).abs().max() < 1e-5
    assert describe(model).proof.verdict == "identity"
    assert describe(patch_model(built(name), "sink_logits", init=0.0)).proof.verdict == "moved"


def test_adam_trains_it_from_there() -> None:
    """Gradients are tiny at first, and Adam's steps are not: the loss wants the sinks to take all weight."""
    model = patch_model(built("llama"), "sink_logits").requires_grad_(False)
    sinks = [part.a.requires_grad_() for part in parts(model)]
    optimiser = torch.optim.Adam(sinks, lr=0.5)
    for _ in range(4):
        model.model(IDS[:, :8]).last_hidden_state.std().neg().backward()
        optimiser.step()
    assert max(float(a.abs().max()) for a in sinks) > 0.1
