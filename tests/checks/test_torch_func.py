"""`torch.func.grad` and `vmap` over patched models equal autograd and a batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from hf_posenc.checks import Case
from hf_posenc.checks.forward import max_deviation, random_tokens


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "t5", "dynamic_ntk", "sinks"])
def test_transforms(scheme: str) -> None:
    with Case("llama", scheme, factor=4).patched() as model:
        tokens, weights = random_tokens(model, 20, rows=3), dict(model.named_parameters())

        def logits(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
            return functional_call(model, weights, (), {"input_ids": tokens, "use_cache": False}).logits

        def loss(weights: dict[str, Tensor]) -> Tensor:
            return logits(weights, tokens).log_softmax(-1)[..., :5].mean()

        plain = logits(weights, tokens)
        each = vmap(lambda row: logits(weights, row[None])[0])(tokens)
        assert max_deviation(each, plain)[0] <= 1e-4
        by_autograd = torch.autograd.grad(loss(weights), list(weights.values()), allow_unused=True)
        for name, found, expected in zip(weights, grad(loss)(weights).values(), by_autograd, strict=True):
            if expected is not None:
                assert torch.allclose(found, expected, atol=1e-5), name
