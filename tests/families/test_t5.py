"""T5 and its kin: lengths, memory, gradients, and what is refused."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_posenc import patch_model, unpatch_model

from .encoder_decoders import SOURCE, TARGET, built
from .tiny import tokens


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
