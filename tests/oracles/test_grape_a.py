"""``grape_a`` against dense float64 sums, with its gradients, and against ALiBi, which constant gates are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model
from hf_posenc.errors import OptionOutOfRange, SchemeNotDefined

from . import models, naive
from .models import HEAD_DIM, HEADS, TRAINED
from .naive import Positions

SLOPES = torch.tensor([2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)], dtype=torch.float64)


@dataclass(frozen=True)
class Gated(Positions):
    """A penalty on distance, with the parameters of each layer in turn: by name, float64."""

    layers: Iterator[dict[str, Tensor]] = field(default_factory=lambda: iter(()))

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        groups, own = query.shape[0] // key.shape[0], next(self.layers)
        key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
        rate = torch.zeros(1, 1, 1, dtype=torch.float64)
        for name, x in (("v", query[:, :, None]), ("u", key[:, None])):
            if name in own:
                direction = own[name] / own[name].square().sum(-1, keepdim=True).sqrt()
                logit = (x * direction[:, None, None]).sum(-1) / math.sqrt(HEAD_DIM)
                rate = rate + (1 + logit.exp()).log()
        omega = (1 + own["a"].exp()).log() * SLOPES
        scores = query @ key.mT / math.sqrt(HEAD_DIM) - self.distance * omega[:, None, None] * rate
        return (scores.masked_fill(~self.seen, -math.inf).softmax(-1) @ value).transpose(0, 1).flatten(1)


def schemes_of(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == "GrapeA"]


@pytest.mark.parametrize("gates", ["both", "query", "key"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_in_a_whole_model(name: str, gates: str) -> None:
    """Outputs, and gradients of the embeddings and of what is learned."""
    build, dense = models.MODELS[name]
    model, ids, text = patch_model(build(), "grape_a", gates=gates), models.text(2 * TRAINED), naive.causal(2 * TRAINED)
    draw = torch.Generator().manual_seed(0)
    for parameter in (one for scheme in schemes_of(model) for one in scheme.parameters()):
        parameter.data.copy_(torch.randn(parameter.shape, generator=draw))
    layers = [
        {key: one.detach().double().requires_grad_() for key, one in scheme.named_parameters()}
        for scheme in schemes_of(model)
    ]
    code = torch.zeros(len(ids), models.WIDTH, dtype=torch.float64, requires_grad=True)
    wanted = dense.__wrapped__(build(), ids, Gated(text.seen, text.distance, code=code, layers=itertools.cycle(layers)))  # type: ignore[attr-defined]
    embedded = model.get_input_embeddings()(ids).detach()[None].requires_grad_()
    found = model(inputs_embeds=embedded).logits[0]
    assert (found - wanted).abs().max() < 2e-4
    for logits in (found, wanted):
        logits.square().mean().backward()
    torch.testing.assert_close(embedded.grad[0].double(), code.grad, atol=1e-5, rtol=2e-3)
    for scheme, layer in zip(schemes_of(model), layers, strict=True):
        for key, one in scheme.named_parameters():
            torch.testing.assert_close(one.grad.double(), layer[key].grad, atol=1e-5, rtol=2e-3, msg=key)
    other = dense(build(), ids, Gated(text.seen, text.distance, layers=itertools.cycle(layers[::-1])))
    assert (found - other).abs().max() > 0.01  # control: each layer has its own


def test_constant_gates_are_alibi() -> None:
    """Directions that no query and key has: both gates are ln 2, and a makes ω their reciprocal."""
    model, ids = patch_model(models.llama(), "grape_a"), models.text(2 * TRAINED)
    for scheme in schemes_of(model):
        scheme.u.data.zero_()
        scheme.v.data.zero_()
        scheme.a.data.fill_(math.log(math.expm1(0.5 / math.log(2))))
    expected = models.logits(patch_model(models.llama(), "alibi"), ids)
    assert (models.logits(model, ids) - expected).abs().max() < 1e-4
    scheme.a.data.add_(1.0)
    assert (models.logits(model, ids) - expected).abs().max() > 0.01  # control


def test_token_by_token() -> None:
    model, ids = patch_model(models.llama(), "grape_a"), models.text(TRAINED + 4)[None]
    with torch.no_grad():
        whole, cache, pieces = model(ids).logits, None, []
        for start, end in ((0, 20), (20, TRAINED), *((n, n + 1) for n in range(TRAINED, TRAINED + 4))):
            out = model(ids[:, start:end], past_key_values=cache, use_cache=True)
            cache, pieces = out.past_key_values, [*pieces, out.logits]
    assert (torch.cat(pieces, 1) - whole).abs().max() < 1e-4


def test_refusals() -> None:
    with pytest.raises(OptionOutOfRange, match="gates"):
        patch_model(models.llama(), "grape_a", gates="none")
    with pytest.raises(SchemeNotDefined):
        patch_model(models.bert(), "grape_a")
