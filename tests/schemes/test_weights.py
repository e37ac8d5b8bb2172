"""Weights of schemes: what looks like a layer is called as one, so that other libraries may replace it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hf_posenc import checks
from hf_posenc.checks import Case
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.schemes.weights import LinearWeights, TableWeights

LAYERS = (nn.Linear, nn.Embedding)
OPTIONS: list[dict[str, Any]] = [
    {"scheme": "shaw", "values": True},
    {"scheme": "deberta", "share_key": False},
    {"scheme": "transformer_xl", "share_uv": True},
    {"scheme": "fire", "share_layers": True},
]
DRAWS = {
    "linear": (lambda: LinearWeights(3, 5), lambda: nn.Linear(3, 5)),
    "linear without bias": (lambda: LinearWeights(3, 5, bias=False), lambda: nn.Linear(3, 5, bias=False)),
    "table": (lambda: TableWeights(7, 4), lambda: nn.Embedding(7, 4)),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_a_seed_draws_what_it_drew_for_layers(kind) -> None:
    found, wanted = DRAWS[kind]
    torch.manual_seed(3)
    ours = found().state_dict()
    torch.manual_seed(3)
    theirs = wanted().state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def uncalled(case: Case) -> list[str]:
    """Linear layers and tables of a scheme that a forward pass has not called, at two lengths."""
    with case.patched() as model:
        layers = {name: part for name, part in model.named_modules() if "posenc" in name and isinstance(part, LAYERS)}
        called: set[int] = set()
        hooks = [layer.register_forward_hook(lambda layer, *_: called.add(id(layer))) for layer in layers.values()]
        for length in (9, 40):
            forward(model, random_tokens(model, case.clip_length(length, model)))
        for hook in hooks:
            hook.remove()
    return [name for name, layer in layers.items() if id(layer) not in called]


@pytest.mark.slow
def test_what_looks_like_a_layer_is_called() -> None:
    """PEFT's LoRA acts where a layer is called, and a quantiser leaves no weight to read."""
    options = [Case("llama", factor=4, **one) for one in OPTIONS]
    assert not {str(case): names for case in (*checks.cases(), *options) if (names := uncalled(case))}
