"""A decode query with grouped heads, a key head at a time: against float64, and in the place of the host's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.core.grouped_heads import attend_packed

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
