"""`torch.compile(fullgraph=True)` equals eager mode, and decodes from a static cache in one graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from transformers.cache_utils import StaticCache

from hf_posenc import patch_model
from hf_posenc.checks import CHECKS, Case
from hf_posenc.checks.forward import forward, max_deviation, new_cache, random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model

from .case_lists import ALL_CASES, QUICK


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK[::2], ids=str)
def test_compiled_equals_eager(case: Case) -> None:
    """On every second scheme of those with hooks of their own; the full matrix has all."""
    deviation = CHECKS["torch_compile"](case)
    assert not deviation.failed, deviation


@pytest.mark.full
@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_every_case_compiles(case: Case) -> None:
    deviation = CHECKS["torch_compile"](case)
    assert not deviation.failed, deviation


@pytest.mark.slow
def test_compiling_warns_of_nothing() -> None:
    """The compiler warns, once a process, where it traces through a cache of Python's: of "silent incorrectness"."""
    model = patch_model(tiny_model("gpt2"), "alibi", factor=2)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(model, backend="eager")(random_tokens(model, 24))


STEPS = 3
ONE_PER_ROUTE = [  # one scheme of each kind of terms; others share their code
    Case("llama", "yarn", factor=4),
    Case("llama", "alibi", factor=4),
    Case("llama", "rerope", factor=4),
    Case("llama", "rerope", factor=4, key_cache="one"),
    Case("gpt2", "t5", factor=4),
    Case("llama", "window", factor=4),
]


def compiled_decoding(case: Case) -> tuple[float, int]:
    """Deviation of compiled cached decoding from one eager forward pass, and the number of graphs."""
    graphs = []

    def counted(graph: torch.fx.GraphModule, example: object) -> Callable:
        graphs.append(graph)
        return graph.forward

    with case.patched() as model, torch.no_grad():
        torch.compiler.reset()
        length = case.clip_length(2 * TRAINED_LENGTH + 5, model)
        tokens, cache = random_tokens(model, length), new_cache(StaticCache, model, length)
        compiled = torch.compile(model, fullgraph=True, backend=counted, dynamic=False)
        model(input_ids=tokens[:, :-STEPS], past_key_values=cache)
        steps = [
            compiled(input_ids=tokens[:, t : t + 1], past_key_values=cache).logits
            for t in range(length - STEPS, length)
        ]
        return max_deviation(torch.cat(steps, dim=1), forward(model, tokens)[:, -STEPS:])[0], len(graphs)


@pytest.mark.slow
@pytest.mark.parametrize("case", ONE_PER_ROUTE, ids=str)
def test_one_graph_for_all_steps(case: Case) -> None:
    deviation, graphs = compiled_decoding(case)
    assert deviation <= case.tolerance("cache")
    assert graphs == 1, "a step was recompiled"
