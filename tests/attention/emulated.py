"""The private CUDA operators emulated on the CPU, from their schema and the formula.

Arguments are bound to the operators' own schemas, so that a wrong name, order or number of them is an error here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten


def bound(operator: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, as the schema has them."""
    arguments = operator.default._schema.arguments
    positional = [a for a in arguments if not a.kwarg_only]
    assert len(args) <= len(positional), f"{operator} takes {len(positional)} positional arguments, got {len(args)}"
    given = {a.name: value for a, value in zip(positional, args, strict=False)} | kwargs
    assert set(given) <= {a.name for a in arguments}, f"{operator} has no {set(given) - {a.name for a in arguments}}"
    missing = [a.name for a in arguments if a.name not in given and not a.has_default_value()]
    assert not missing, f"{operator} misses {missing}"
    return {a.name: given.get(a.name, a.default_value) for a in arguments}


def as_schema(operator: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of a dict of arguments in place of an operator."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: function(bound(operator, args, kwargs))

    return wrap


def head_for_each(x: Tensor, heads: int) -> Tensor:
    """``[batch, token, kv_heads, dim]`` with a head for every query head."""
    return x.repeat_interleave(heads // x.shape[2], 2)


def weights(a: dict[str, Any], causal: bool, window: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores (−∞ where hidden), float64, and query, key and value, ``[batch, head, token, dim]``."""
    query = a["query"]
    assert query.stride(-1) == 1
    assert a["key"].stride(-1) == 1
    if causal:
        assert query.shape[1] == a["key"].shape[1], "kernels differ in where causality of a rectangle is aligned"
    heads = query.shape[2]
    q, k, v = (x.transpose(1, 2).double() for x in (query, *(head_for_each(a[n], heads) for n in ("key", "value"))))
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
    hidden = (distance < 0) & causal
    if window is not None:
        hidden = hidden | (distance >= window)
    scores = (q @ k.transpose(-1, -2) * a["scale"]).masked_fill(hidden, -torch.inf)
    empty = not isinstance(scores, FakeTensor) and bool((scores == -torch.inf).all(-1).any())
    assert not empty, "a row that sees nothing: kernels differ in what comes back"
    return scores, q, k, v


def gradients(a: dict[str, Any], scores: Tensor, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, lse: Tensor) -> tuple:
    """As flash attention has them, from the output and log-sum-exp it is given, ``[batch, token, kv_heads, dim]``."""
    g, out = grad.transpose(1, 2).double(), a["out"].transpose(1, 2).double()
    p = (scores - lse.double()[..., None]).exp()
    d_scores = p * (g @ v.transpose(-1, -2) - (g * out).sum(-1, keepdim=True)) * a["scale"]
    found = (d_scores @ k, d_scores.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g)
    kv_heads = a["key"].shape[2]
    dq, dk, dv = (x.transpose(1, 2).to(a["query"].dtype) for x in found)
    return (dq, *(x.unflatten(2, (kv_heads, -1)).sum(3) for x in (dk, dv)))


def window_of_flash(a: dict[str, Any]) -> int | None:
    if a["window_size_left"] is None:
        return None
    assert a["window_size_right"] == 0
    return a["window_size_left"] + 1


@as_schema(aten._flash_attention_forward)
def flash_forward(a: dict[str, Any]) -> tuple:
    assert a["query"].dtype in (torch.float16, torch.bfloat16)
    scores, *_, v = weights(a, a["is_causal"], window_of_flash(a))
    out = (scores.softmax(-1) @ v).transpose(1, 2).to(a["query"].dtype)
    return out, scores.logsumexp(-1).float(), None, None, None


@as_schema(aten._flash_attention_backward)
def flash_backward(a: dict[str, Any]) -> tuple:
    scores, q, k, v = weights(a, a["is_causal"], window_of_flash(a))
    assert a["logsumexp"].is_contiguous()
    return gradients(a, scores, q, k, v, a["grad_out"], a["logsumexp"])


@as_schema(aten._efficient_attention_forward)
def efficient_forward(a: dict[str, Any]) -> tuple:
    assert a["query"].shape[2] == a["key"].shape[2], "this kernel wants a key head for every query head"
    assert a["compute_log_sumexp"]
    scores, *_, v = weights(a, a["custom_mask_type"] == 1, a["window_size"])
    lse = torch.nn.functional.pad(scores.logsumexp(-1).float(), (0, -scores.shape[2] % 32), value=torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).to(a["query"].dtype), lse, None, None, 0, 0


@as_schema(aten._efficient_attention_backward)
def efficient_backward(a: dict[str, Any]) -> tuple:
    scores, q, k, v = weights(a, a["custom_mask_type"] == 1, a["window_size"])
    assert a["logsumexp"].shape[-1] % 32 == 0
    lse = a["logsumexp"][..., : q.shape[2]]
    return (*gradients(a, scores, q, k, v, a["grad_out_"], lse), None)


OPERATORS = {
    "flash_forward": flash_forward,
    "flash_backward": flash_backward,
    "efficient_forward": efficient_forward,
    "efficient_backward": efficient_backward,
}
