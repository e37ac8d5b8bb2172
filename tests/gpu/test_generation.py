"""Generation, compiled models and CUDA graphs on a GPU, with schemes of every kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ..forward.test_launches import WAITS
from .models import UNPATCHED, each, gradient_gap, patched, tokens_of
from .test_synchronisation import waits

NEW = 10
PROMPT = 40  # past the trained length
GENERATED = ("yarn", "alibi", "t5", "rerope", "dca", "sinks", "dynamic_ntk", "fire", "transformer_xl", "fox")
CAPTURED = (UNPATCHED, "none", "alibi", "t5", "fox", "fire", "learned", "yarn", "rerope")
ROUNDING = 1e-4  # of the largest entry, float32; a compiler sums in another order


def generate(model: PreTrainedModel, prompt: Tensor, **settings: object) -> list[list[int]]:
    """The new tokens of greedy generation, always as many."""
    found = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW,
        pad_token_id=0, **settings,
    )  # fmt: skip
    return found[:, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("scheme", each(GENERATED, "generation"))
def test_greedy_tokens_are_those_without_a_cache(scheme: str, device: str) -> None:
    model, prompt = patched(scheme).to(device), tokens_of(scheme)[:, :PROMPT].to(device)
    expected = generate(model, prompt, use_cache=False)
    assert len({tuple(row) for row in expected}) == 2, "control: two texts go on differently"
    assert generate(model, prompt) == expected


@pytest.mark.parametrize("scheme", ["alibi", "yarn"])
def test_static_cache_as_transformers_compiles_it(scheme: str, device: str) -> None:
    """On a GPU `generate` compiles the decoding behind such a cache, of its own accord."""
    model, prompt = patched(scheme).to(device), tokens_of(scheme)[:, :PROMPT].to(device)
    expected = generate(model, prompt, use_cache=False)
    try:
        assert generate(model, prompt, cache_implementation="static") == expected
    finally:
        torch.compiler.reset()


@pytest.mark.xdist_group("cuda graphs")
@pytest.mark.parametrize("scheme", CAPTURED)
def test_training_step_as_a_cuda_graph(scheme: str, device: str) -> None:
    """A replay on another text gives the gradients of an eager step, which the first text does not have."""
    model = patched(scheme).to(device).train()
    first, second = (tokens_of(scheme, seed).to(device) for seed in (1, 2))
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}

    def step(tokens: Tensor) -> None:  # without a cache, transformers asks the GPU whether several texts are packed
        model(tokens, labels=tokens, past_key_values=DynamicCache()).loss.backward()

    def eager(tokens: Tensor) -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        step(tokens)
        return {name: weight.grad.clone() for name, weight in weights.items() if weight.grad is not None}

    given = first.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        of_first, of_second = eager(first), eager(second)
        model.zero_grad(set_to_none=True)
        step(given)
        with waits() as found:  # a graph holds none, and a capture that fails harms the tests after it
            step(given)
    torch.cuda.current_stream().wait_stream(side)
    assert not found or scheme in WAITS, "waits for the GPU, not captured:\n" + "\n".join(found)

    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(given)
    captured = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
    for tokens, expected, other in ((second, of_second, of_first), (first, of_first, of_second)):
        given.copy_(tokens)
        graph.replay()
        torch.cuda.synchronize()
        value, name = gradient_gap(captured, expected)
        assert value <= 10 * ROUNDING, name
        assert gradient_gap(captured, other)[0] > 100 * ROUNDING, "control"
