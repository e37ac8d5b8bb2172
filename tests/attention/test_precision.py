"""Dropout by the formula with the same mask; half precision loses no more than plain attention in that dtype."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hf_posenc.attention import dispatch
from hf_posenc.attention.call import AttentionCall
from hf_posenc.core.context import PositionContext
from hf_posenc.core.terms import KeyBias, Terms

from .formula import ALL, Problem, repeated_heads

HALF = [torch.bfloat16, torch.float16]
KINDS = [kind for kind in ALL if kind not in ("rows", "sink", "values", "scaled rows")]  # those have no plain form here


def plain(problem: Problem) -> Tensor:
    """The formula as eager attention computes it: products in the dtype, softmax in float32."""
    exact = [t.detach().double() for t in problem.leaves]
    q, k, v = problem.q, problem.k, problem.v
    distance = problem.query_positions()[:, :, None] - problem.key_positions()[:, None, :]
    learned = exact[-1] if problem.learned is not None else None
    bias = problem.position.bias(distance, exact[0], learned)
    logits = q[0] @ repeated_heads(k[0], problem.heads).transpose(-1, -2) * problem.scaling
    here, there = problem.query_positions()[:, :, None], problem.key_positions()[:, None, :]
    claims = [claim(here, there)[:, None] for claim in problem.position.claims]
    for query, key, mine in zip(q[1:], k[1:], claims[1:], strict=True):
        logits = torch.where(
            mine, query @ repeated_heads(key, problem.heads).transpose(-1, -2) * problem.scaling, logits
        )
    logits = (logits.float() + (bias.float() if isinstance(bias, Tensor) else bias)) * problem.position.logit_scale
    seen = problem.seen()
    if claims:
        seen = seen & torch.stack(claims).any(0)
    if problem.position.hidden is not None:
        seen = seen & ~problem.position.hidden(distance)[:, None]
    weights = logits.masked_fill(~seen, -math.inf).softmax(-1).to(problem.dtype)
    return weights @ repeated_heads(v, problem.heads)


def errors(problem: Problem) -> tuple[float, float]:
    """Root mean square error of the engine and of the plain computation."""
    exact = problem.expected()
    return tuple(float((x.double() - exact).square().mean().sqrt()) for x in (problem.engine(), plain(problem)))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_texts_and_new_tokens(kind: str, dtype: torch.dtype) -> None:
    for shape in ({"queries": 300}, {"queries": 1, "keys": 300, "batch": 8}):
        ours, theirs = errors(Problem(kind, head_dim=32, dtype=dtype, **shape))
        assert ours <= 1.5 * theirs, shape


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: str, dtype: torch.dtype) -> None:
    """Three roundings of the dtype are in a gradient; a lost digit would be many times that."""
    problem = Problem(kind, queries=140, head_dim=32, dtype=dtype, grad=True)
    found = problem.gradient_deviations()
    if kind == "learned slopes":
        found.pop()  # the gradient of a slope is a small sum of large terms, under torch's kernel too
    assert max(found) <= 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("length", [70, 1500])
def test_a_key_bias_of_forget_gates_in_float32(length: int) -> None:
    """Sums of 0.8 nats for each token would cost the scores their digits, relative to one query for a whole block."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 4, length, 32, generator=draw) for _ in range(3))
    sums = -nn.functional.logsigmoid(torch.randn(1, 4, length, generator=draw).double()).cumsum(-1)
    positions = torch.arange(length)[None]
    ctx = PositionContext(positions, positions, causal=True, contiguous=True)
    call = AttentionCall((q,), (k,), v, Terms(bias=(KeyBias(sums),)), ctx, None, 32**-0.5)
    exact, in_torch = (
        _attention_of_pairs(*(t.to(dtype) for t in (q, k, v)), (sums[:, :, None] - sums[..., None]).to(dtype))
        for dtype in (torch.float64, torch.float32)
    )
    error, torch_error = (float((x - exact).square().mean().sqrt()) for x in (dispatch.attend(call), in_torch))
    assert error <= 1.5 * torch_error


def _attention_of_pairs(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    logits = q @ k.mT * 32**-0.5 + bias
    return logits.masked_fill(torch.ones_like(logits[0, 0], dtype=torch.bool).triu(1), -math.inf).softmax(-1) @ v


def test_control_a_key_bias_in_half_precision_is_broken() -> None:
    """Why the mask stays float32 under bfloat16 queries."""
    problem = Problem("key bias", queries=1, keys=2048, batch=1, dtype=torch.bfloat16)
    call = problem.call()
    (bias,) = call.terms.bias
    bias.values.copy_(bias.values.bfloat16())  # type: ignore[union-attr]
    rounded = float((problem.attend(call).double() - problem.expected()).abs().max())
    assert rounded < 5e-2  # counted back from the newest query, rounding falls on keys that are silent already
    bias.values.copy_((bias.values + 1000.3).bfloat16())  # type: ignore[union-attr]
    assert float((problem.attend(call).double() - problem.expected()).abs().max()) > 0.1


LENGTH, RATE = 33, 0.3


def drawn(problem: Problem, seed: int) -> torch.Tensor:
    """The factor each weight was given, read off with identity values: 0 or 1 / (1 − rate), 1 where nothing is seen."""
    probe = replace(problem, kv_heads=problem.heads, grad=False)
    probe.q, probe.learned = [q.detach() for q in problem.q], problem.learned
    probe.k = [k.detach().repeat_interleave(problem.heads // problem.kv_heads, 1) for k in problem.k]
    probe.v = torch.eye(LENGTH).expand(problem.batch, problem.heads, LENGTH, LENGTH)
    torch.manual_seed(seed)
    dropped = probe.engine()
    probe.dropout = 0.0
    whole = probe.engine()
    return torch.where(whole > 0, dropped / whole, 1.0).detach().double()


# The draw is read off with identity values, to which nothing may be added.
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "values"])
def test_formula_under_the_same_draw(kind: str) -> None:
    problem = Problem(kind, queries=LENGTH, dropout=RATE, grad=True)
    kept = drawn(problem, seed=3)
    share = float((kept[kept != 1] == 0).double().mean())
    assert 0.5 * RATE < share < 1.5 * RATE
    exact = [t.detach().double().requires_grad_() for t in problem.leaves]
    expected = problem.expected(kept=kept, leaves=exact)
    torch.manual_seed(3)
    mixed = problem.engine()
    torch.testing.assert_close(mixed.double(), expected, atol=2e-5, rtol=0)  # 1 / (1 − rate) on top of 1e-5
    ours = torch.autograd.grad(mixed.square().sum(), problem.leaves)
    theirs = torch.autograd.grad(expected.square().sum(), exact)
    for one, other in zip(ours, theirs, strict=True):
        assert float((one.double() - other).abs().max() / other.abs().max()) <= 2e-5
