"""Operators behind attention: torch's private one, a public route, a key head at a time, ours in compiled graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc.attention import custom_operator
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.checks import Case
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.tiny_models import LAYERS
from hf_posenc.core.grouped_heads import attend_packed

from .formula import ALL, BOTH_WAYS, Problem
from .test_formula import ROUTES


@pytest.fixture
def no_private_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_POSENC_NO_PRIVATE_OPS", "1")
    monkeypatch.setattr(flash_cpu, "AVAILABLE", flash_cpu.available())  # as on import
    assert not flash_cpu.AVAILABLE


@pytest.mark.usefixtures("no_private_ops")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ROUTES)
def test_outputs_and_gradients(kind: str, causal: bool) -> None:
    if not causal and kind not in BOTH_WAYS:
        pytest.skip("causal only")
    problem = Problem(kind, queries=150 if kind != "rows" else 40, causal=causal, grad=True)
    assert problem.route() in ("dense_blocks", "sliding_window", "length_rotation")
    assert problem.deviation() <= problem.limit
    assert max(problem.gradient_deviations()) <= problem.limit


def test_the_operator_is_used_where_it_exists() -> None:
    """Control: otherwise the tests above compare the public way with itself."""
    if not flash_cpu.AVAILABLE:
        pytest.skip("this torch has no CPU flash operator that takes a mask together with causality")
    assert Problem("toeplitz").route() == "toeplitz_bias"


def reading_past(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *call: object, **more: object) -> tuple:
    """The operator of torch 2.8: every query head reads a key head of its own number, in whatever memory that is."""
    key, value = (t.as_strided(query.shape, t.stride(), t.storage_offset()) for t in (key, value))
    return OPERATOR(query, key, value, *call, **more)


OPERATOR = flash_cpu.forward


def test_an_operator_without_shared_key_heads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_cpu, "forward", reading_past)
    assert not flash_cpu.shares_key_heads()


@pytest.mark.parametrize("kind", ["key bias", "toeplitz", "two regions", "rows"])
def test_an_operator_without_shared_key_heads_gets_repeated_keys(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where memory behind the keys would have been read without an error."""
    assert flash_cpu.AVAILABLE
    seen = []

    def strict(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *call: object, **more: object) -> tuple:
        seen.append(query.shape[1] == key.shape[1] == value.shape[1])
        return OPERATOR(query, key, value, *call, **more)

    monkeypatch.setattr(flash_cpu, "forward", strict)
    monkeypatch.setattr(flash_cpu, "SHARES_KEY_HEADS", False)
    problem = Problem(kind, queries=150, keys=150)
    assert problem.deviation() <= problem.limit
    assert seen
    assert all(seen)


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


BATCH, HEADS, KV_HEADS, LENGTH, DIM = 2, 6, 2, 37, 8
SCALE = DIM**-0.5


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


def inputs(dtype: torch.dtype = torch.float32, rows: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    query = drawn(BATCH, rows, HEADS, DIM).transpose(1, 2)
    return tuple(x.to(dtype) for x in (query, drawn(BATCH, KV_HEADS, LENGTH, DIM), drawn(BATCH, KV_HEADS, LENGTH, DIM)))  # type: ignore[return-value]


def formula(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mixed values and log-sum-exp in float64, with a key head repeated for every query head."""
    keys, values = (x.double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (key, value))
    scores = query.double() @ keys.mT * SCALE
    scores = scores if mask is None else scores + mask.double()
    return scores.softmax(-1) @ values, scores.logsumexp(-1)


MASKS = {
    "none": lambda rows: None,
    "for all": lambda rows: drawn(1, 1, 1, LENGTH),
    "of rows": lambda rows: drawn(1, 1, rows, LENGTH),
    "of samples": lambda rows: drawn(BATCH, 1, rows, LENGTH),
    "of heads": lambda rows: drawn(1, HEADS, rows, LENGTH),
    "of heads, for all rows": lambda rows: drawn(1, HEADS, 1, LENGTH),
    "of both": lambda rows: drawn(BATCH, HEADS, rows, LENGTH),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_head_reads_its_own_keys_under_its_own_mask(mask: Any, dtype: torch.dtype) -> None:
    query, key, value = inputs(dtype)
    added = mask(1)
    expected, lse = formula(query, key, value, added)
    out, found_lse = flash_cpu.attend(query, key, value, causal=False, mask=added, scale=SCALE)
    public = attend_packed(query, key, value, None if added is None else added.to(dtype), scale=SCALE)
    tolerance = 2e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found_lse.double(), lse, atol=tolerance / 10, rtol=tolerance)
    torch.testing.assert_close(public.double(), expected, atol=2 * tolerance, rtol=2 * tolerance)


def test_heads_in_another_order_would_be_seen() -> None:
    """Negative control: query heads dealt out in turn, as some libraries do."""
    query, key, value = inputs()
    in_turn = query.unflatten(1, (-1, KV_HEADS)).transpose(1, 2).flatten(1, 2)
    assert (attend_packed(in_turn, key, value, scale=SCALE) - formula(query, key, value, None)[0]).abs().max() > 0.1
