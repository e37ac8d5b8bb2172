"""A decode query with grouped heads, a key head at a time: against float64, and in the place of the host's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posenc import patch_model
from hf_posenc.attention.kernels import flash_cpu
from hf_posenc.core.grouped_heads import attend_packed
from hf_posenc.forward import packed_decode

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


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_rows_of_several_regions_are_read_at_once(mask: Any) -> None:
    query, key, value = inputs(rows=3)
    added = mask(3)
    expected, lse = formula(query, key, value, added)
    out, found_lse = flash_cpu.attend(query, key, value, causal=False, mask=added, scale=SCALE)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(found_lse.double(), lse, atol=2e-6, rtol=2e-6)


def test_heads_in_another_order_would_be_seen() -> None:
    """Negative control: query heads dealt out in turn, as some libraries do."""
    query, key, value = inputs()
    in_turn = query.unflatten(1, (-1, KV_HEADS)).transpose(1, 2).flatten(1, 2)
    assert (attend_packed(in_turn, key, value, scale=SCALE) - formula(query, key, value, None)[0]).abs().max() > 0.1


def model_of(kv_heads: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=48, intermediate_size=48, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=kv_heads, max_position_embeddings=32,
    )  # fmt: skip
    return patch_model(LlamaForCausalLM(config).eval(), "yarn", factor=4)


@pytest.fixture
def packed_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the queries that are packed."""
    seen: list[tuple[int, ...]] = []

    def watched(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(tuple(query.shape))
        return attend_packed(query, *args, **kwargs)

    monkeypatch.setattr(packed_decode, "attend_packed", watched)
    return seen


@torch.no_grad()
def decoded(model: LlamaForCausalLM, **given: Any) -> Tensor:
    cache = DynamicCache(config=model.config)
    ids = torch.arange(40).view(2, 20)
    mask = given.get("attention_mask")
    model(ids[:, :-1], past_key_values=cache, **({} if mask is None else {"attention_mask": mask[:, :-1]}))
    return model(ids[:, -1:], past_key_values=cache, **given).logits[:, -1]


@pytest.mark.parametrize("padding", [0, 4])
def test_plain_rotations_decode_so(packed_calls: list, padding: int) -> None:
    model, mask = model_of(2), torch.ones(2, 20, dtype=torch.long)
    mask[0, :padding] = 0
    with torch.no_grad():
        whole = model(torch.arange(40).view(2, 20), attention_mask=mask).logits[:, -1]
    torch.testing.assert_close(decoded(model, attention_mask=mask), whole, atol=1e-5, rtol=1e-5)
    assert packed_calls
    assert {shape[2] for shape in packed_calls} == {1}


def test_without_grouped_heads_transformers_own_function_computes(packed_calls: list) -> None:
    decoded(model_of(6))
    assert packed_calls == []


def test_a_function_in_the_place_of_transformers_own_is_called(
    packed_calls: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, rows = ALL_ATTENTION_FUNCTIONS["sdpa"], []

    def registered(module: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        rows.append(query.shape[2])
        return own(module, query, *args, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", registered)
    decoded(model_of(2))
    assert packed_calls == []
    assert rows.count(1) == 2  # a decode query in each layer
