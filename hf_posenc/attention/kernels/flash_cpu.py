"""The CPU flash kernel, which takes a float32 mask together with causality.

The mask may be broadcast or a view with overlapping memory, and is not copied; `scaled_dot_product_attention` does not
allow this. The operator is private, so it is looked up once, and every caller has a public fallback with the same
result. The environment variable ``HF_POSENC_NO_PRIVATE_OPS=1`` switches it off.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.grouped_heads import packed_mask, repeated

EXAMPLE: Any = {"dtype": torch.float32, "device": "cpu"}  # explicit, because the caller may have changed the defaults
FEW = 4  # up to so many queries, all query heads of a group become rows of one head, so that each key is read once

forward = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
backward = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def available() -> bool:
    """Whether the operator exists and gives outputs of the expected shapes on a small example."""
    if os.environ.get("HF_POSENC_NO_PRIVATE_OPS") == "1" or forward is None or backward is None:
        return False
    q = torch.ones(1, 2, 2, 8, **EXAMPLE)
    mask = torch.zeros(1, 1, 1, 2, **EXAMPLE)
    try:
        out, lse = forward(q, q[:, :1], q[:, :1], 0.0, True, attn_mask=mask, scale=0.5)
    except (RuntimeError, TypeError):
        return False
    return out.shape == q.shape and lse.shape == (1, 2, 2)


def shares_key_heads() -> bool:
    """Whether the operator supports fewer key heads than query heads. In torch 2.8 it reads past the keys instead.

    The keys of the example are a view of a larger tensor, so that reading past them is safe, and changes the result.
    """
    query = torch.arange(64, **EXAMPLE).view(1, 4, 2, 8) / 64
    shared = query[:, :2]
    each = shared.repeat_interleave(2, 1)
    try:
        return torch.allclose(forward(query, shared, shared)[0], forward(query, each, each)[0])  # type: ignore[misc]
    except (RuntimeError, TypeError):
        return False


def channels_inner(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors ``[…, dim]``, copied if the channel stride of any of them is not 1, as after a convolution.

    The CPU kernel ignores that stride and would silently read wrong channels; the CUDA kernels raise.
    """
    for x in tensors:  # a loop instead of a generator: every Python call counts in decoding
        if x.stride(-1) != 1 and x.shape[-1] != 1:
            return tuple(map(Tensor.contiguous, tensors))
    return tensors


# Evaluated on import: a graph cannot branch on the values of a tensor.
AVAILABLE = available()
SHARES_KEY_HEADS = AVAILABLE and shares_key_heads()


def usable(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the operator can compute these tensors. It takes a float32 mask with every dtype except float64."""
    fits = query.shape[-1] == value.shape[-1] and query.dtype == key.dtype == value.dtype != torch.float64
    return query.device.type == "cpu" and fits and AVAILABLE


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Output ``[batch, heads, query, dim]`` and log-sum-exp ``[batch, heads, query]``, float32.

    Causality is aligned at the upper left. A query without a visible key has output 0 and log-sum-exp 0.
    """
    _, heads, rows, _ = query.shape
    if heads != key.shape[1] and rows <= FEW and not causal:
        return attend_rows(query, key, value, None if mask is None else packed_mask(mask, query, key.shape[1]), scale)
    query, key, value = channels_inner(query, key, value)
    if not SHARES_KEY_HEADS:
        key, value = repeated(query, key, value)
    return forward(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)  # type: ignore[misc]


def attend_rows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """`attend` for a few queries: the query heads of a group are rows of its key head. The mask is a `packed_mask`."""
    query, key, value = channels_inner(query, key, value)
    rows = query.reshape(query.shape[0], key.shape[1], -1, query.shape[-1])
    out, lse = forward(rows, key, value, 0.0, False, attn_mask=mask, scale=scale)  # type: ignore[misc]
    return out.reshape(query.shape), lse.reshape(query.shape[:3])


def gradient(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; ``out`` and ``lse`` may be those of a merge that includes this call."""
    groups = query.shape[1] // key.shape[1]
    key, value = repeated(query, key, value)  # the kernel's backward pass needs a key head for every query head
    arguments = (t.contiguous() for t in (grad, query, key, value, out, lse))
    dq, dk, dv = backward(*arguments, 0.0, causal, attn_mask=mask, scale=scale)  # type: ignore[misc]
    if groups > 1:
        dk, dv = (t.unflatten(1, (-1, groups)).sum(2) for t in (dk, dv))
    return dq, dk, dv
