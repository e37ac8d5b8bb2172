"""What schemes are built from: weights that are called as layers, and biases evaluated once per distance."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import checks, patch_model
from hf_posenc.checks import Case
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.schemes.bias.distances import per_distance
from hf_posenc.schemes.weights import LinearWeights, TableWeights

from ..families.tiny import tiny, tokens

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


@pytest.mark.parametrize("low", [0, -7])
def test_evaluating_each_distance_once_equals_each_pair(low: int) -> None:
    weight = torch.randn(3, requires_grad=True)

    def function(distance: Tensor) -> Tensor:
        calls.append(distance.numel())
        return weight[:, None] * (distance * 0.3).sin()

    calls: list[int] = []
    distance = torch.randint(low, 40, (2, 30, 50), generator=torch.Generator().manual_seed(0))
    grid = per_distance(function, distance)
    assert calls[0] <= 47  # and not 3000
    direct = function(distance.flatten()).unflatten(-1, distance.shape)
    assert torch.allclose(grid, direct)
    steer = torch.randn_like(grid)
    ours, theirs = (torch.autograd.grad((y * steer).sum(), weight)[0] for y in (grid, direct))
    assert torch.allclose(ours, theirs, rtol=1e-4)


def test_far_apart_pairs_cost_no_range() -> None:
    """Two distances a billion apart: not a billion evaluations."""
    sizes: list[int] = []

    def function(distance: Tensor) -> Tensor:
        sizes.append(distance.numel())
        return distance[None].float()

    assert per_distance(function, torch.tensor([[0, 10**9]])).tolist() == [[[0.0, 1e9]]]
    assert sizes == [2]


@pytest.mark.parametrize(
    ("model", "scheme"), [("llama", "deberta"), ("modernbert", "deberta"), ("llama", "deberta+ssmax")]
)
def test_each_layer_has_one_pair_of_projections(model: str, scheme: str) -> None:
    """Layers with a scheme of their own had those of all layers, most of them without a gradient."""
    patched = patch_model(tiny(model, masked=model == "modernbert"), scheme, factor=4, share_key=False)
    patched(tokens(9)).logits.square().sum().backward()
    own = {name: weight for name, weight in patched.named_parameters() if ".own." in name}
    assert sum(name.endswith("to_key.weight") for name in own) == patched.config.num_hidden_layers
    assert not [name for name, weight in own.items() if weight.grad is None]
