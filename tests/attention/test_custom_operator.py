"""The operator that carries calls in compiled graphs: against the formula, and in whole models against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_posenc import patch_model
from hf_posenc.attention import custom_operator

from .formula import ALL, Problem

NOT_CARRIED = ("rows", "content", "values", "regions with a bias")
CARRIED = tuple(kind for kind in ALL if kind not in NOT_CARRIED)
HEADS = 4
LENGTHS = (40, 61, 150)
SCHEMES = {
    "alibi": {}, "t5": {}, "fox": {}, "rerope": {"window": 16}, "dca": {"chunk": 16}, "window": {"size": 16},
}  # fmt: skip


def deviation(problem: Problem) -> float:
    """Of the operator from the formula; rows of padding may hold anything."""
    difference = (custom_operator.attend(problem.call()).double() - problem.expected()).abs()
    if problem.real is not None:
        difference = difference.masked_fill(~problem.real[:, -problem.queries :].bool()[:, None, :, None], 0.0)
    return float(difference.max())


@pytest.mark.parametrize("queries", [29, 5, 1])
@pytest.mark.parametrize("kind", CARRIED)
def test_equals_the_formula(kind: str, queries: int) -> None:
    problem = Problem(kind, queries=queries, keys=29)
    assert custom_operator.carries(problem.call())
    assert deviation(problem) <= problem.limit


@pytest.mark.parametrize("kind", ["key bias", "learned table", "two regions", "sink", "scaled rows"])
def test_the_operator_is_well_formed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own check: schema, shapes without values, and no tensor changed or returned."""
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(custom_operator, "operator", lambda *arguments: given.append(arguments))
    custom_operator.attend(Problem(kind).call())
    monkeypatch.undo()
    assert set(torch.library.opcheck(custom_operator.operator, given[0]).values()) == {"SUCCESS"}


@dataclass
class Graphs:
    """A backend that runs graphs as they were traced, and measures them."""

    count: int = 0
    operators: int = 0
    largest: list[int] = field(default_factory=list)

    def __call__(self, graph: torch.fx.GraphModule, example: object) -> Callable[..., Any]:
        self.count += 1
        for node in graph.graph.nodes:
            self.operators += "hf_posenc.attend" in str(node.target)
        return _Measured(graph, self.largest).run


class _Measured(torch.fx.Interpreter):
    """Notes the elements of every tensor of a run."""

    def __init__(self, graph: torch.fx.GraphModule, sizes: list[int]) -> None:
        super().__init__(graph)
        self.sizes = sizes

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        self.sizes += [
            x.numel() for x in (result if isinstance(result, (tuple, list)) else [result]) if torch.is_tensor(x)
        ]
        return result


def compiled(scheme: str, *, grad: bool = False, mask: torch.Tensor | None = None) -> tuple[Graphs, float, int]:
    """What the graphs of a patched model are, how far its logits are from eager mode, and heads · length²."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    patch_model(model, scheme, **SCHEMES[scheme])
    torch.compiler.reset()
    graphs, deviations = Graphs(), []
    whole = torch.compile(model, fullgraph=True, backend=graphs, dynamic=True)
    with torch.set_grad_enabled(grad):
        for length in LENGTHS if mask is None else [mask.shape[1]]:
            graphs.largest.clear()
            ids = torch.randint(64, (2, length))
            real = torch.ones(2, length) if mask is None else mask
            told = {} if mask is None else {"attention_mask": mask}
            difference = (whole(ids, **told, use_cache=False).logits - model(ids, **told, use_cache=False).logits).abs()
            deviations.append(float((difference * real[..., None]).max()))
    torch.compiler.reset()
    return graphs, max(deviations), HEADS * length**2


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_graph_for_all_lengths_holds_no_scores(scheme: str) -> None:
    graphs, deviation, scores = compiled(scheme)
    assert deviation <= 1e-5
    assert (graphs.count, graphs.operators) == (1, 2)  # one a layer
    assert max(graphs.largest) < scores


@pytest.mark.slow
def test_scores_are_seen_where_they_are_held() -> None:
    """The control: graphs with gradients go without the operator."""
    graphs, deviation, scores = compiled("alibi", grad=True)
    assert deviation <= 1e-5
    assert graphs.operators == 0
    assert max(graphs.largest) >= scores
