"""Hand-written derivatives, and gradients of all learned parameters, against finite differences.

Inputs are float64, so that a step of a hundredth is exact; inside, scores are float32 and hence the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.func import functional_call

from hf_posenc import list_schemes
from hf_posenc.attention.routes.key_bias import LearnedKeys
from hf_posenc.attention.routes.toeplitz_bias import Tabled
from hf_posenc.checks import Case, cases
from hf_posenc.checks.forward import random_tokens
from hf_posenc.core.geometry import Layout, Rotation
from hf_posenc.core.rotation.apply import rotate, table

from .formula import ALL, Problem, tokens

LIMITS = {"eps": 1e-2, "atol": 1e-5, "rtol": 1e-2, "fast_mode": True}  # along directions that are drawn
OF_MODELS = LIMITS | {"eps": 1e-3, "atol": 1e-4}
KINKED = {
    "fire"
}  # some of its ReLUs turn within any step that float32 shows; tests/oracles/test_fire.py has its gradient
BACKWARD_CLASSES = {  # kinds of attention, and the function of ours whose backward pass they must have come through
    "plain": None, "toeplitz": "Tabled", "learned table": "Tabled", "rows": "RotatedRuns",
    **dict.fromkeys(("key bias", "two regions", "chunks", "first keys", "split by row"), "MergedAttention"),
}  # fmt: skip


def functions_behind(out: Tensor) -> set[str]:
    """Names of all nodes of a graph, without the ending that autograd gives them."""
    found, todo = set(), [out.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found.add(node)
            todo += [before for before, _ in node.next_functions]
    return {type(node).__name__.removesuffix("Backward") for node in found}


def engine_of(problem: Problem) -> Callable[..., Tensor]:
    """The engine's answer as a function of the problem's leaves, in whatever type they are."""

    def mixed(*leaves: Tensor) -> Tensor:
        n = problem.position.regions
        rounded = [leaf.float() for leaf in leaves]
        problem.q, problem.k, problem.v = rounded[:n], rounded[n : 2 * n], rounded[2 * n]
        problem.learned = rounded[2 * n + 1] if len(rounded) > 2 * n + 1 else None
        out = problem.engine().double()
        if problem.real is not None:  # rows of padding mean nothing
            out = out * problem.real[:, -problem.queries :, None].bool()[:, None]
        return out

    return mixed


def exact(*found: Tensor) -> tuple[Tensor, ...]:
    return tuple(one.detach().double().requires_grad_() for one in found)


@pytest.mark.parametrize("behind", ["all", "cache", "padding"])
@pytest.mark.parametrize("kind", ALL)
def test_the_engine(kind: str, behind: str) -> None:
    queries, keys = (5, 5) if behind == "all" else (3, 5)
    real = tokens([0, 1, 1, 1, 1], [1, 1, 1, 1, 1]) if behind == "padding" else None
    problem = Problem(
        kind, queries, keys, batch=2, heads=2, kv_heads=1, head_dim=4, causal=True, real=real, grad=True, seed=3,
        mask_kind="none" if behind == "all" else "bool",
    )  # fmt: skip
    leaves, mixed = exact(*problem.leaves), engine_of(problem)
    if behind == "all" and BACKWARD_CLASSES.get(kind):
        assert BACKWARD_CLASSES[kind] in functions_behind(mixed(*leaves)), "control: it goes another way"
    assert gradcheck(mixed, leaves, **LIMITS)


@pytest.mark.parametrize(("queries", "rows"), [(5, 1), (5, 2), (3, 2)])
def test_a_bias_of_the_key_that_is_learned(queries: int, rows: int) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = (2, 4, queries, 4), (2, 2, 5, 4), (2, 2, 5, 4), (rows, 4, 5)
    leaves = exact(*(torch.randn(shape, generator=draw) for shape in shapes))
    assert gradcheck(lambda *t: LearnedKeys.apply(*(one.float() for one in t), 0.5).double(), leaves, **LIMITS)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("decay", [(), (0.1, 0.02)], ids=["rotated", "shrunk"])
@pytest.mark.parametrize("learned", [False, True], ids=["given", "learned"])
def test_the_rotation(layout: Layout, decay: tuple[float, ...], learned: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    x, frequencies = exact(torch.randn(2, 3, 4, 6, generator=draw), torch.tensor([0.8, 0.2]))
    positions = torch.tensor([[0, 1, 2, 3], [5, 7, 8, 9]])

    def rotated(x: Tensor, frequencies: Tensor) -> Tensor:
        of = frequencies if learned else tuple(frequencies.tolist())
        rotation = Rotation(of, layout, decay=decay)
        return rotate(x, rotation, table(rotation, positions, -positions.double() if decay else None))

    if not learned:
        frequencies = frequencies.detach()
    assert gradcheck(rotated, (x, frequencies), **LIMITS)


SMOOTH = {"kerple": {"param": "softplus"}}  # where a number is clamped its gradient is that of the identity, on purpose
LEARNING: list[tuple[str, dict[str, Any]]] = [
    *((name, SMOOTH.get(name, {})) for name in sorted({r.name for r in list_schemes() if r.learned} - KINKED)),
    ("sinks", {"sinks": 3, "recent": 13, "learned_logit": True}),
    ("shaw", {"values": True, "key_query": True}),
    ("rope+fox", {}),
    ("alibi", {"slopes": "learned"}),
    ("rope", {"learn_freq": True}),
    ("sinusoidal", {"scale": "learned"}),
    ("integer", {"direction": "learned"}),
    ("ssmax", {"bias": 0.0}),
]  # fmt: skip
CASES = [
    Case(case.model, case.scheme, dtype=torch.float64, **case.options, **options)
    for scheme, options in LEARNING
    for case in cases(scheme)
    if case.model in ("llama", "bert")
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_learned_parameters(case: Case) -> None:
    """Past the trained length where the scheme goes there; of two texts, some rows and words."""
    with case.patched() as model:
        own = {name: weight for name, weight in model.named_parameters() if "posenc." in name}
        text = random_tokens(model, case.clip_length(case.trained_length + 6, model), rows=2)

        def log_probabilities(*values: Tensor) -> Tensor:
            output = functional_call(model, dict(zip(own, values, strict=True)), (text,), {"use_cache": False})
            return output.logits.double().log_softmax(-1)[:, -3:, :6]

        assert own or case.table is not None, "only the model's own table is trained under another name"
        assert not own or gradcheck(log_probabilities, exact(*own.values()), **OF_MODELS)


def test_every_scheme_that_learns_is_here() -> None:
    assert {record.name for record in list_schemes() if record.learned} - KINKED <= {case.scheme_name for case in CASES}


def test_a_wrong_derivative_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a share of one gradient is lost."""
    own = Tabled.backward

    def forgetful(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, table, *rest = own(ctx, grad)
        return query, key, value, None if table is None else 0.9 * table, *rest

    monkeypatch.setattr(Tabled, "backward", staticmethod(forgetful))
    problem = Problem("learned table", 5, batch=1, heads=2, kv_heads=1, head_dim=4, causal=True, grad=True)
    with pytest.raises(GradcheckError):
        gradcheck(engine_of(problem), exact(*problem.leaves), **LIMITS)
