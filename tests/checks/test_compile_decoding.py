"""Decoding from a static cache under `torch.compile(fullgraph=True)`: one graph for all steps, and the same logits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from transformers.cache_utils import StaticCache

from hf_posenc.checks import Case
from hf_posenc.checks.forward import (
    forward,
    max_deviation,
    new_cache,
    random_tokens,
)
from hf_posenc.checks.tiny_models import TRAINED_LENGTH

from .matrix import CONTINUED

STEPS = 3
ONE_OF_A_ROUTE = [  # of each kind of terms on each model; others share their code
    Case("llama", "yarn", factor=4),
    Case("llama", "alibi", factor=4),
    Case("llama", "rerope", factor=4),
    Case("gpt2", "t5", factor=4),
    Case("llama", "window", factor=4),
]


def decoded(pair: Case) -> tuple[float, int]:
    """Deviation of the last tokens, decoded compiled, from the text read at once; and how many graphs that took."""
    graphs = []

    def counted(graph: torch.fx.GraphModule, example: object) -> Callable:
        graphs.append(graph)
        return graph.forward

    with pair.patched() as model, torch.no_grad():
        torch.compiler.reset()
        length = pair.length(2 * TRAINED_LENGTH + 5, model)
        tokens, cache = random_tokens(model, length), new_cache(StaticCache, model, length)
        compiled = torch.compile(model, fullgraph=True, backend=counted, dynamic=False)
        model(input_ids=tokens[:, :-STEPS], past_key_values=cache)
        steps = [
            compiled(input_ids=tokens[:, t : t + 1], past_key_values=cache).logits
            for t in range(length - STEPS, length)
        ]
        return max_deviation(torch.cat(steps, dim=1), forward(model, tokens)[:, -STEPS:])[0], len(graphs)


def check(pair: Case) -> None:
    if math.isinf(pair.limit("compiled")):
        pytest.xfail("an exception of hf_posenc.checks.tolerances")
    off, graphs = decoded(pair)
    assert off <= pair.limit("cache")
    assert graphs == 1, "a step was compiled anew"


@pytest.mark.parametrize("pair", ONE_OF_A_ROUTE, ids=str)
def test_one_graph_for_all_steps(pair: Case) -> None:
    check(pair)


@pytest.mark.full
@pytest.mark.parametrize("pair", [p for p in CONTINUED if p.model_name != "bert_decoder"], ids=str)
def test_every_decoder(pair: Case) -> None:
    """A BERT decoder shares its modules with BERT and its masks with GPT-2."""
    check(pair)
