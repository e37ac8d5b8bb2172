"""Linear biases and windows in the FlashAttention package, emulated by a module with the same formula."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import Tensor

from hf_posenc import patch_model
from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.kernels import flash_attn
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.regions import EVERYTHING, Band
from hf_posenc.core.terms import KeyBias, Terms, ToeplitzBias
from hf_posenc.errors import BackendCannotCarry

from .formula import Problem, mix, repeated_heads, slopes, tokens

HEADS, WINDOW = 4, 7


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """As documented: causality and distance from the lower right corner, ``[batch, token, head, dim]``."""
    rows, keys, heads = q.shape[1], k.shape[1], q.shape[2]
    query, key, value = (x.transpose(1, 2).double() for x in (q, k, v))
    ahead = torch.arange(keys) - (torch.arange(rows)[:, None] + keys - rows)
    scores = torch.einsum("bhid,bhjd->bhij", query, repeated_heads(key, heads)) * softmax_scale
    if alibi_slopes is not None:
        assert alibi_slopes.dtype == torch.float32
        assert alibi_slopes.shape == (heads,)
        scores = scores - alibi_slopes[:, None, None].double() * ahead.abs()
    left, right = window_size
    right = 0 if causal else right
    hidden = torch.zeros(rows, keys, dtype=torch.bool)
    hidden |= (ahead > right) if right >= 0 else False
    hidden |= (ahead < -left) if left >= 0 else False
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhij,bhjd->bihd", weights, repeated_heads(value, heads)).to(q.dtype)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """One text behind the other, ``[token, head, dim]``."""
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert max_seqlen_q == int(cu_seqlens_q.diff().max())
    assert max_seqlen_k == int(cu_seqlens_k.diff().max())
    settings = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size}
    parts = []
    ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False):
        one = flash_attn_func(q[None, a:b], k[None, c:d], v[None, c:d], alibi_slopes=alibi_slopes, **settings)
        parts.append(one[0])
    return torch.cat(parts)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("flash_attn")
    module.flash_attn_func, module.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return module


def linear(ctx: PositionContext) -> tuple[KeyBias | ToeplitzBias, ...]:
    steep = slopes(HEADS)
    if ctx.causal:
        return (KeyBias(steep[None, :, None] * ctx.key_positions[:, None].double(), steep),)
    return (ToeplitzBias(lambda d: -steep.view(-1, *[1] * d.ndim) * d.abs(), steep),)


def call_of(problem: Problem, *, bias: bool, window: bool) -> AttentionCall:
    call = problem.call()
    near = Band(0 if problem.causal else 1 - WINDOW, WINDOW)
    terms = Terms(
        bias=linear(call.ctx) if bias else (), visible=near if window else EVERYTHING, logit_scale=1.25
    )  # fmt: skip
    return replace(call, terms=terms)


def expected(problem: Problem, *, bias: bool, window: bool) -> Tensor:
    """Dense and in float64; rows that see nothing are zero."""
    distance = (problem.query_positions()[:, :, None] - problem.key_positions()[:, None, :])[:, None].abs()
    seen = problem.seen() & (distance < WINDOW) if window else problem.seen()
    linear = -slopes(HEADS, torch.float64)[:, None, None] * distance if bias else 0.0
    q, k, v = (x.double() for x in (problem.q[0], problem.k[0], problem.v))
    return mix([q], [k], v, seen, scaling=problem.scaling, logit_scale=1.25, bias=linear).nan_to_num(0.0)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("bias", "window"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(29, 29), (1, 29), (6, 29)])
def test_plain_texts(queries: int, keys: int, causal: bool, bias: bool, window: bool) -> None:
    if queries < keys and not causal:
        pytest.skip("an encoder has no cache")
    problem = Problem("plain", queries=queries, keys=keys, causal=causal)
    mixed = flash_attn.attend(call_of(problem, bias=bias, window=window), None)
    torch.testing.assert_close(mixed.double(), expected(problem, bias=bias, window=window), atol=1e-6, rtol=0)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [40, 1, 6])
@pytest.mark.parametrize("left", [True, False])
def test_padding(left: bool, queries: int, causal: bool) -> None:
    if queries < 40 and not (causal and left):
        pytest.skip("an encoder has no cache, and a text is continued behind its padding")
    row = [0] * 11 + [1] * 29
    real = tokens(row if left else row[::-1], [1] * 40)
    problem = Problem("plain", queries=queries, keys=40, causal=causal, real=real)
    mixed = flash_attn.attend(call_of(problem, bias=True, window=True), real)
    exact = expected(problem, bias=True, window=True)
    exact = exact.masked_fill(~real.bool()[:, None, -queries:, None], 0.0)
    torch.testing.assert_close(mixed.double(), exact, atol=1e-6, rtol=0)


def refusals() -> dict[str, AttentionCall]:
    problem = Problem("plain")
    plain = call_of(problem, bias=True, window=False)
    trained = KeyBias(torch.zeros(1, HEADS, 29), slopes(HEADS).requires_grad_())
    two = torch.cat([torch.arange(15), torch.arange(14)])[None]
    packed = replace(plain.ctx, query_positions=two, key_positions=two, contiguous=False)
    return {
        "not linear in distance": Problem("toeplitz").call(),
        "more than a linear bias": Problem("sink").call(),
        "slopes that are being trained": replace(plain, terms=Terms(bias=(trained,))),
        "of chunks": replace(plain, terms=replace(plain.terms, visible=Band(None, 1, chunk=5))),
        "own key": replace(plain, terms=replace(plain.terms, visible=Band(2, 9))),
        "packed": replace(plain, ctx=packed),
    }


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("reason", refusals())
def test_what_it_cannot_compute_is_refused(reason: str) -> None:
    with pytest.raises(BackendCannotCarry, match=reason):
        flash_attn.attend(refusals()[reason], None)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.parametrize("scheme", ["alibi", ("window", {"size": WINDOW})])
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_whole_models(padded: bool, scheme: str | tuple[str, dict[str, int]], name: str) -> None:
    """The backend that transformers calls by that name, against the one that computes the formula."""
    if name == "bert" and scheme != "alibi":
        pytest.skip("a window is a decoder's")
    model = patch_model(tiny_model(name), scheme)
    ids = torch.arange(60).view(2, 30)
    mask = torch.tensor([[0] * 7 + [1] * 23, [1] * 30]) if padded else torch.ones(2, 30, dtype=torch.long)
    theirs = model(ids, attention_mask=mask)[0]
    model.config._attn_implementation = "flash_attention_2"  # asked for by its name, the package itself is looked for
    ours = model(ids, attention_mask=mask)[0]
    assert float((ours - theirs)[mask.bool()].abs().max()) < 1e-5
    if name == "llama" and not padded:
        held = model(ids[:, :20], use_cache=True).past_key_values
        last = model(ids[:, 20:21], past_key_values=held)[0]
        assert float((last[:, 0] - theirs[:, 20]).abs().max()) < 1e-5
