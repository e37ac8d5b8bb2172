"""The operator that carries calls in compiled graphs, against the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_posenc.attention import custom_operator
from hf_posenc.checks import Case
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.tiny_models import LAYERS

from .formula import ALL, Problem

NOT_CARRIED = ("rows", "content", "values", "regions with a bias")
CARRIED = tuple(kind for kind in ALL if kind not in NOT_CARRIED)


@pytest.mark.parametrize("queries", [29, 5, 1])
@pytest.mark.parametrize("kind", CARRIED)
def test_equals_the_formula(kind: str, queries: int) -> None:
    problem = Problem(kind, queries=queries, keys=29)
    assert custom_operator.carries(problem.call())
    assert problem.deviation(custom_operator.attend(problem.call())) <= problem.limit


@pytest.mark.parametrize(
    "kind", ["key bias", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("learned table", "two regions"))]
)
def test_the_operator_is_well_formed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own check: schema, shapes without values, and no tensor changed or returned."""
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(custom_operator, "operator", lambda *arguments: given.append(arguments))
    custom_operator.attend(Problem(kind).call())
    monkeypatch.undo()
    assert set(torch.library.opcheck(custom_operator.operator, given[0]).values()) == {"SUCCESS"}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["alibi", "rerope"])
def test_a_compiled_model_calls_it(scheme: str) -> None:
    """Once a layer, in one graph for all lengths: no graph holds the scores of all pairs."""
    graphs: list[torch.fx.GraphModule] = []

    def noted(graph: torch.fx.GraphModule, example: object) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    with Case("llama", scheme, factor=4).patched() as model, torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend=noted, dynamic=True)
        for length in (40, 61, 150):
            tokens = random_tokens(model, length)
            found = compiled(tokens, use_cache=False).logits
            assert max_deviation(found, forward(model, tokens))[0] <= 1e-4
    (graph,) = graphs
    assert sum("hf_posenc.attend" in str(node.target) for node in graph.graph.nodes) == LAYERS
