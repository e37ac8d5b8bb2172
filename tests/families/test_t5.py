"""T5 and its kin: lengths, memory, gradients, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import T5EncoderModel

from hf_posenc import describe, from_pretrained, patch_model, unpatch_model

from .encoder_decoders import INTERFACE, SOURCE, TARGET, built
from .tiny import tiny_config, tokens


@pytest.mark.skipif(not INTERFACE, reason="T5 computes its attention itself")
def test_the_encoder_of_t5_alone() -> None:
    torch.manual_seed(0)
    model, ids = T5EncoderModel(tiny_config("t5", d_kv=16)).eval(), tokens(SOURCE)
    with torch.no_grad():
        stock = model(ids).last_hidden_state
        patch_model(model, "alibi")
        assert describe(model).proof.verdict == "moved"
        assert not torch.equal(model(ids).last_hidden_state, stock)
        unpatch_model(model)
        assert torch.equal(model(ids).last_hidden_state, stock)


@pytest.mark.skipif(not INTERFACE, reason="T5 computes its attention itself")
@pytest.mark.parametrize("name", ["t5", "umt5"])
def test_a_table_that_some_layers_read_is_trained(name: str, tmp_path: Path) -> None:
    """Layers with ``host`` keep the model's own biases; only where no layer reads them is there nothing to train."""
    model, ids = built(name).get_encoder(), tokens(SOURCE)
    tables = {key: weight for key, weight in model.named_parameters() if "relative_attention_bias" in key}
    patch_model(model, "alibi", layers={"1::2": "host"})
    model(ids).last_hidden_state.square().sum().backward()
    read = {key for key, weight in tables.items() if weight.grad is not None and weight.grad.any()}
    assert read
    assert read <= {key for key, weight in tables.items() if weight.requires_grad}
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path, model_class=type(model))
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]
    unpatch_model(model)
    patch_model(model, "alibi")
    assert not any(weight.requires_grad for weight in tables.values()), "control: no layer reads them"


def test_trained_with_its_own_bias() -> None:
    """Gradients of T5's table under a scheme that keeps it are T5's own; under one that replaces it, there are none."""
    model, source, target = built("t5"), tokens(SOURCE), tokens(TARGET)

    def gradients() -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        model(input_ids=source, decoder_input_ids=target, labels=target).loss.backward()
        return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

    stock = gradients()
    patch_model(model, "host")
    found = gradients()
    assert found.keys() == stock.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, stock[name], rtol=1e-4, atol=1e-6, msg=name)
    unpatch_model(model)
    patch_model(model, "alibi")
    assert {name for name in stock if "relative_attention_bias" in name} == stock.keys() - gradients().keys()
