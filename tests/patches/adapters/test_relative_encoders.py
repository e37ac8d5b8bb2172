"""MPNet and DeBERTa, whose encoders have relative positions of their own: kept, left out, and put back as a scheme."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DebertaV2ForMaskedLM

from hf_posenc import patch_model, unpatch_model
from hf_posenc.patching.state import scheme_of

from ...families.tiny import gap, tiny, tiny_config, tokens

CLOSE = 1e-5  # of the spread of logits, float32
VERSIONS: dict[str, dict[str, Any]] = {
    "third": {"pos_att_type": "c2p|p2c", "share_att_key": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm"},
    "own projections": {"pos_att_type": ["c2p", "p2c"], "position_buckets": 16, "position_biased_input": True},
    "no buckets": {"pos_att_type": ["c2p"], "share_att_key": True, "position_buckets": -1},
    "one term": {"pos_att_type": ["p2c"], "position_buckets": 32, "norm_rel_ebd": "layer_norm"},
}


def built(**options: Any) -> Any:
    """A tiny DeBERTa, whose configuration class knows some options by getattr only."""
    config = tiny_config("deberta-v2")
    for name, value in options.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = DebertaV2ForMaskedLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.2)
    return model


def deberta(version: str) -> Any:
    options = {"relative_attention": True, "position_biased_input": False, "max_relative_positions": 40}
    return built(**(options | VERSIONS[version]))


def logits(model: nn.Module, length: int = 60, **call: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=tokens(length), **call).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", VERSIONS)
def test_deberta_keeps_its_own_positions(version: str) -> None:
    """Past the clipping of its distances, with and without padding, and under a scheme on top of them."""
    model = deberta(version)
    mask = torch.ones(2, 60, dtype=torch.long)
    mask[1, 45:] = 0
    stock, padded = logits(model), logits(model, attention_mask=mask)
    patch_model(model, "host")
    assert gap(logits(model), stock) < CLOSE
    assert gap(logits(model, attention_mask=mask)[1, :45], padded[1, :45]) < CLOSE
    unpatch_model(model)
    assert torch.equal(logits(model), stock)
    patch_model(model, "window", size=70)  # all keys are in it, and the model's own positions stay
    assert gap(logits(model), stock) < CLOSE
    unpatch_model(model)
    patch_model(model, "none")  # control
    assert gap(logits(model), stock) > 0.02


def test_deberta_as_a_scheme_of_its_own() -> None:
    """The scheme with the model's table, on a model without terms of its own, whose scores are scaled alike."""
    model = deberta("third")
    stock = logits(model)
    table, norm = model.deberta.encoder.rel_embeddings.weight, model.deberta.encoder.LayerNorm
    plain = built(position_biased_input=False)
    plain.load_state_dict(model.state_dict(), strict=False)
    patch_model(plain, "deberta", span=40, buckets=16)
    scheme: Any = scheme_of(plain)
    with torch.no_grad():
        scheme.table.weight.copy_(table)
        scheme.norm.load_state_dict(norm.state_dict())
    assert gap(logits(plain), stock) < CLOSE
    unpatch_model(plain)
    assert gap(logits(plain), stock) > 0.02  # control


def test_mpnet_with_t5s_bias() -> None:
    """T5's buckets are MPNet's: with its table in the scheme and no other positions, the logits are the model's own."""
    model: Any = tiny("mpnet", masked=True)
    with torch.no_grad():
        model.mpnet.embeddings.position_embeddings.weight.zero_()
        model.mpnet.encoder.relative_attention_bias.weight.normal_(std=2.0, generator=torch.Generator().manual_seed(5))
    stock = logits(model, 120)
    patch_model(model, "t5")
    assert gap(logits(model, 120), stock) > 0.1  # control
    scheme: Any = scheme_of(model)
    with torch.no_grad():
        scheme.table.weight.copy_(model.mpnet.encoder.relative_attention_bias.weight)
    assert gap(logits(model, 120), stock) < CLOSE


def test_mpnet_learns_its_own_bias() -> None:
    """Kept by a scheme, the bias has the gradient that it has in the unpatched model."""
    model: Any = tiny("mpnet", masked=True)
    found = []
    for scheme in (None, "host"):
        if scheme:
            patch_model(model, scheme)
        model.zero_grad()
        model(input_ids=tokens(40)).logits.square().mean().backward()
        found.append(model.mpnet.encoder.relative_attention_bias.weight.grad.clone())
    assert found[0].abs().max() > 0
    assert gap(found[1], found[0]) < 1e-4
