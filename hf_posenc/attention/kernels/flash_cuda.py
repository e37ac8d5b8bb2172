"""The CUDA kernels of `scaled_dot_product_attention`, called for their log-sum-exp and with a window.

    float16, bfloat16    flash attention
    float32              memory-efficient attention, which needs a key head for every query head

Both operators are private. Before its first call with a dtype, head dimension and device, an operator is compared with
the formula on a small example, forward and backward. If it differs or fails, a warning is issued once, and callers use
their public fallback. ``HF_POSENC_NO_PRIVATE_OPS=1`` switches both off.
"""

from __future__ import annotations

import math
import os
import warnings
from functools import lru_cache

import torch
from torch import Tensor

from hf_posenc.attention.kernels.flash_cpu import channels_inner
from hf_posenc.core.grouped_heads import repeated
from hf_posenc.core.tracing import is_traced
from hf_posenc.errors import KernelNotUsed

aten = torch.ops.aten
flash_forward = getattr(aten, "_flash_attention_forward", None)
flash_backward = getattr(aten, "_flash_attention_backward", None)
efficient_forward = getattr(aten, "_efficient_attention_forward", None)
efficient_backward = getattr(aten, "_efficient_attention_backward", None)

WIDEST = 256  # channels of a head; flash attention has no kernel for more
ALLOWED = {torch.float16: 2e-2, torch.bfloat16: 5e-2, torch.float32: 1e-3}  # relative errors; float32 may be TF32
FROM_TOP_LEFT = 1  # the efficient kernel's code for a causal mask aligned at the upper left


def usable(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether one of the operators can compute these tensors."""
    dim = query.shape[-1]
    return (
        query.dtype in ALLOWED
        and query.dtype == key.dtype == value.dtype
        and dim == value.shape[-1]
        and dim % 8 == 0
        and dim <= WIDEST
        # Torch 2.13 has wrong shapes for this operator's gradients, and cannot trace it.
        and not (query.dtype == torch.float32 and is_traced() and torch.is_grad_enabled())
        and agrees_with_formula(query.dtype, dim, str(query.device))
    )


@torch.compiler.assume_constant_result
def agrees_with_formula(dtype: torch.dtype, dim: int, device: str) -> bool:
    """Whether the operator for this kind of tensor exists and agrees with the formula."""
    return os.environ.get("HF_POSENC_NO_PRIVATE_OPS") != "1" and _checked(dtype, dim, device)


@lru_cache(maxsize=64)
def _checked(dtype: torch.dtype, dim: int, device: str) -> bool:
    try:
        deviation = max(_deviations(dtype, dim, device))
        reason = None if deviation <= ALLOWED[dtype] else f"it is off by {deviation:.1e} on an example"
    except (RuntimeError, TypeError) as error:
        reason = str(error).split("\n")[0]
    if reason is not None:
        warn_of_unused("fused attention kernel", "merged regions", dtype, dim, device, reason)
    return reason is None


def warn_of_unused(kernel: str, use: str, dtype: torch.dtype, dim: int, device: str, reason: str) -> None:
    """Warn that a kernel of PyTorch is not used, and say why."""
    warnings.warn(
        f"PyTorch's {kernel} for {dtype} with {dim} channels a head on {device} is not used for {use}: {reason}. "
        "A slower route with the same result is used.",
        KernelNotUsed,
        stacklevel=4,
    )


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, mask: int | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Output ``[batch, heads, query, dim]`` and log-sum-exp ``[batch, heads, query]``, float32.

    Causality is aligned at the upper left. ``mask`` is a window under causality: the number of keys visible to a query,
    its own included.
    """
    rows, keys = query.shape[2], key.shape[2]
    query, key, value = channels_inner(query, key, value)
    if query.dtype != torch.float32:
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        out, lse, *_ = flash_forward(  # type: ignore[misc]
            q, k, v, None, None, rows, keys, 0.0, causal, False, scale=scale, **_reach(mask)
        )
        return out.transpose(1, 2), lse
    q, k, v = (x.transpose(1, 2) for x in (query, *repeated(query, key, value)))
    out, lse, *_ = efficient_forward(  # type: ignore[misc]
        q, k, v, None, None, None, None, None, 0.0, FROM_TOP_LEFT if causal else 0, True,
        scale=scale, **_size(mask),
    )  # fmt: skip
    return out.transpose(1, 2), lse[..., :rows]  # padded to whole tiles of rows


def gradient(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    mask: int | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; ``out`` and ``lse`` may be those of a merge that includes this call."""
    rows, keys, kv_heads = query.shape[2], key.shape[2], key.shape[1]
    grad, query, key, value, out = channels_inner(grad, query, key, value, out)
    if query.dtype != torch.float32:
        g, q, k, v, o = (x.transpose(1, 2) for x in (grad, query, key, value, out))
        # State of the dropout generator; unused, as there is no dropout.
        seed, offset = (torch.zeros(n, dtype=torch.uint64, device=query.device) for n in (2, 0))
        gradients = flash_backward(  # type: ignore[misc]
            g, q, k, v, o, lse.contiguous(), None, None, rows, keys, 0.0, causal, seed, offset,
            scale=scale, **_reach(mask),
        )  # fmt: skip
        return tuple(x.transpose(1, 2) for x in gradients)
    g, q, k, v, o = (x.transpose(1, 2) for x in (grad, query, *repeated(query, key, value), out))
    padded_lse = torch.nn.functional.pad(lse, (0, -rows % 32), value=torch.inf)  # padding rows have weight 0
    no_dropout = torch.zeros((), dtype=torch.long, device=query.device)
    dq, dk, dv, _ = efficient_backward(  # type: ignore[misc]
        g, q, k, v, None, o.contiguous(), None, None, rows, keys, padded_lse.contiguous(), 0.0, no_dropout, no_dropout,
        FROM_TOP_LEFT if causal else 0, False, scale=scale, **_size(mask),
    )  # fmt: skip
    dk, dv = (x.transpose(1, 2).unflatten(1, (kv_heads, -1)).sum(2) for x in (dk, dv))
    return dq.transpose(1, 2), dk, dv


def _reach(window: int | None) -> dict[str, int]:
    return {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}


def _size(window: int | None) -> dict[str, int]:
    return {} if window is None else {"window_size": window}


def _deviations(dtype: torch.dtype, dim: int, device: str) -> list[float]:
    """Relative deviations of output, log-sum-exp and gradients from the formula, in three example calls."""
    draw = torch.Generator().manual_seed(0)
    deviations = []
    for rows, causal, window in ((150, True, 37), (150, True, None), (70, False, None)):
        shapes = ((1, 4, rows, dim), (1, 2, 150, dim), (1, 2, 150, dim), (1, 4, rows, dim))
        q, k, v, grad = (torch.randn(shape, generator=draw).to(device, dtype) for shape in shapes)
        settings = {"causal": causal, "scale": 1.5 / math.sqrt(dim), "mask": window}
        out, lse = attend(q, k, v, **settings)  # type: ignore[arg-type]
        results = (out, lse, *gradient(grad, q, k, v, out, lse, **settings))  # type: ignore[arg-type]
        expected = _formula(q, k, v, grad, **settings)  # type: ignore[arg-type]
        deviations += [relative_gap(*pair) for pair in zip(results, expected, strict=True)]
    return deviations


def relative_gap(result: Tensor, exact: Tensor) -> float:
    """Largest difference from a float64 tensor, relative to its largest entry; infinite if that is not finite."""
    deviation = (result.double() - exact).abs().max() / exact.abs().max()
    return float(deviation) if bool(deviation.isfinite()) else math.inf


def _formula(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, causal: bool, mask: int | None, scale: float
) -> tuple[Tensor, ...]:
    """Output, log-sum-exp and gradients of query, key and value by the formula, float64."""
    with torch.enable_grad():
        leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
        query, key, value = leaves[0], *repeated(*leaves)
        distance = torch.arange(q.shape[2], device=q.device)[:, None] - torch.arange(k.shape[2], device=q.device)
        hidden = (distance < 0) & causal
        if mask is not None:
            hidden = hidden | (distance >= mask)
        scores = (query @ key.transpose(-1, -2) * scale).masked_fill(hidden, -torch.inf)
        out = scores.softmax(-1) @ value
        return (out.detach(), scores.logsumexp(-1).detach(), *torch.autograd.grad(out, leaves, g.double()))
