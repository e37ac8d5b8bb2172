"""Calls of any shape and dtype are as of the unpatched model or refused; a refused one leaves the cache as it was."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache

import hf_posenc
from hf_posenc import patch_model
from hf_posenc.cache.snapshot import LayerSnapshot
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import BackendCannotCarry, InvalidInput, MaskMismatch, PosEncError, UnknownKeyword

from ..families.tiny import tiny
from ..small_models import llama

DTYPES = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float64)
STOCK, PATCHED = tiny_model("llama"), hf_posenc.patch_model(tiny_model("llama"), "rope")
ONE_OR_TWO_AXES = [(), (5,), (1, 5), (2, 5), (3, 5), (0, 5), (1, 0), (1, 6), (2, 4)]
MORE_AXES = [(1, 1, 5), (3, 1, 5), (1, 1, 5, 5), (2, 4, 5, 5), (1, 3, 5, 5), (1, 1, 1, 5), (2, 1, 5, 6), (1, 1, 5, 9)]
SHAPES = st.sampled_from([*ONE_OR_TWO_AXES, *MORE_AXES])


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """Zeros, ones, or a few small numbers, in any dtype."""
    shape, dtype = draw(SHAPES), draw(st.sampled_from(DTYPES))
    kind = draw(st.sampled_from(["ones", "zeros", "count"]))
    if kind != "count":
        return getattr(torch, kind)(shape, dtype=dtype)
    return (torch.ones(shape).cumsum(-1) - 1 if shape else torch.tensor(0.0)).to(dtype)


CALLS = st.fixed_dictionaries(
    {"input_ids": st.one_of(tensors(), st.just(torch.arange(3, 13).view(2, 5)))},
    optional={
        "attention_mask": st.one_of(tensors(), st.none(), st.just([[1] * 5]), st.just("causal")),
        "position_ids": st.one_of(tensors(), st.none(), st.just([[0] * 5])),
        "past_key_values": st.sampled_from([None, (), "cache", 3]),
        "use_cache": st.booleans(),
    },
)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(call=CALLS)
def test_any_call_equals_the_unpatched_model_or_is_refused(call: dict[str, Any]) -> None:
    try:
        with torch.no_grad():
            found = PATCHED(**call).logits
    except PosEncError:
        return
    try:
        with torch.no_grad():
            expected = STOCK(**call).logits
    except Exception:  # what the unpatched model says in kernels' words may be computed here, if it is a text at all
        assert found.isfinite().all()
        return
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"attention_mask": torch.ones(2, 5, dtype=torch.int64)},
        {"attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])},
        {"position_ids": torch.arange(5).expand(2, 5)},
        {"use_cache": True},
    ],
    ids=["ids", "mask", "left padding", "positions", "cache"],
)
def test_a_call_that_transformers_documents_is_not_refused(call: dict[str, Any]) -> None:
    """Control: a patched model that refused everything would pass the test above."""
    ids = torch.arange(3, 13).view(2, 5)
    with torch.no_grad():
        torch.testing.assert_close(PATCHED(ids, **call).logits, STOCK(ids, **call).logits, rtol=0, atol=1e-4)


COMPILED = {"llama": "yarn", "bert": "rope"}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_a_graph_for_any_length_takes_a_mask_and_positions(name: str) -> None:
    """Lengths and rows are symbols once they have changed, to which the sizes of a mask are compared."""
    torch._dynamo.reset()
    model = hf_posenc.patch_model(tiny_model(name), COMPILED[name])
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for rows, length, masked in ((2, 20, False), (2, 14, False), (2, 17, True), (3, 19, True)):
        ids = torch.arange(3, 3 + rows * length).view(rows, length) % 60
        call = {"attention_mask": torch.ones_like(ids), "position_ids": torch.arange(length)[None]} if masked else {}
        with torch.no_grad():
            torch.testing.assert_close(compiled(ids, **call)[0], model(ids, **call)[0], rtol=0, atol=1e-5)


def test_surplus_and_doubled_arguments_are_refused_as_by_the_model_itself() -> None:
    model, ids = hf_posenc.patch_model(tiny_model("llama"), "rope").model, torch.arange(3, 13).view(2, 5)
    with pytest.raises(TypeError, match="multiple values for argument 'input_ids'"):
        model(ids, input_ids=ids + 1)
    with pytest.raises(TypeError, match="positional arguments but 20 were given"):
        model(*[None] * 20)
    torch.testing.assert_close(model(ids, torch.ones_like(ids))[0], model(ids)[0])


SCHEMES = ("alibi", "fox", "rerope", "sinks", "dynamic_ntk", "shaw")
CACHES = {
    "growing": lambda model: DynamicCache(config=model.config), "layer by layer": lambda model: DynamicCache(),
    "static": lambda model: StaticCache(config=model.config, max_cache_len=20),
}  # fmt: skip
LENGTH, NEW = 12, 4


def refused_keyword(model: Any, ids: torch.Tensor, cache: Cache) -> None:
    with torch.no_grad(), pytest.raises(UnknownKeyword):
        model(ids, past_key_values=cache, softcap=30.0)


def refused_backend(model: Any, ids: torch.Tensor, cache: Cache) -> None:
    """Flex attention has no backward pass on a CPU."""
    model.set_attn_implementation("flex_attention")
    with pytest.raises(BackendCannotCarry):
        model(ids, past_key_values=cache)
    model.set_attn_implementation("sdpa")


@pytest.mark.slow
@pytest.mark.parametrize("refused", [refused_keyword, refused_backend])
@pytest.mark.parametrize("past", [0, LENGTH - NEW])
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_call_can_be_made_again(scheme: str, kind: str, past: int, refused: Any) -> None:
    model = patch_model(llama(max_position_embeddings=8), scheme, factor=4)
    ids = torch.randint(64, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    cache = CACHES[kind](model)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        if past:
            model(ids[:, :past], past_key_values=cache)
    refused(model, ids[:, past:], cache)
    with torch.no_grad():
        found = model(ids[:, past:], past_key_values=cache).logits
    torch.testing.assert_close(found, whole[:, past:], atol=1e-4, rtol=0)


@pytest.mark.slow
def test_without_it_the_logits_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control."""
    monkeypatch.setattr(LayerSnapshot, "restore", lambda before: None)
    with pytest.raises(AssertionError, match="not close"):
        test_the_call_can_be_made_again("alibi", "growing", LENGTH - NEW, refused_backend)


@pytest.mark.parametrize(
    "scheme", ["alibi", "fire", "fox", "cope", "grape_a", "transformer_xl", "deberta", "rope+scale_invariant"]
)
def test_a_mask_that_shows_later_keys_is_refused_where_a_decoder_has_no_scores_for_them(scheme: str) -> None:
    """They were counted as at distance 0, or rewarded for it; and other numbers came out where positions had gaps."""
    model, earlier = patch_model(llama(), scheme), torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    tokens, cache = torch.arange(3, 11)[None], DynamicCache()
    prefix = earlier.clone()
    prefix[..., :4, :4] = True
    expected = model(tokens).logits
    for mask in (prefix, torch.zeros(1, 1, 8, 8).masked_fill(~prefix, -1e4)):
        with pytest.raises(MaskMismatch):
            model(tokens, attention_mask=mask)
    model(tokens[:, :5], attention_mask=earlier[..., :5, :5], past_key_values=cache)
    found = model(tokens[:, 5:], attention_mask=earlier[..., 5:, :], past_key_values=cache).logits
    torch.testing.assert_close(found, expected[:, 5:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scheme", ["fox", "rope+cable", "alibi"])
def test_gates_are_not_counted_of_hidden_tokens_between(scheme: str) -> None:
    """A tree of drafts behind one text; and a hole in a 2-D mask, of which a static cache makes masks by kind."""
    model, row, tree = patch_model(llama(), scheme), torch.arange(3, 11)[None], torch.ones(1, 1, 8, 8).tril().bool()
    tree[..., 6:, 4:6] = False
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 4, 5]])
    hole = {"attention_mask": (torch.arange(8) != 4)[None].long(), "cache_implementation": "static"}
    if scheme != "alibi":
        generate = patch_model(tiny("gemma3_text"), scheme).generate
        for call in (partial(model, row, tree, positions), partial(generate, row, **hole, max_new_tokens=2)):
            with pytest.raises(MaskMismatch, match="gates"):
                call()
        padded = torch.ones(8, 8).tril().bool() & (torch.arange(8) < 6)  # no token sees the last two
        found = model(row, padded[None, None]).logits[:, :6]
        torch.testing.assert_close(found, model(row[:, :6]).logits, atol=1e-4, rtol=1e-4)
        return
    branch = model(torch.cat((row[:, :4], row[:, 6:]), dim=1)).logits[:, 4:]
    torch.testing.assert_close(model(row, tree, positions).logits[:, 6:], branch, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "fox", "dca"])
def test_a_mask_of_one_row_is_one_for_all_rows(scheme: str) -> None:
    model, ids = patch_model(llama(max_position_embeddings=8), scheme, factor=4), torch.arange(3, 27).view(2, 12)
    mask = torch.ones(1, 12, dtype=torch.int64)
    mask[0, :3] = 0
    with torch.no_grad():
        torch.testing.assert_close(model(ids, mask).logits, model(ids, mask.expand(2, -1)).logits, rtol=0, atol=0)
        assert not torch.equal(model(ids, mask).logits, model(ids).logits), "control: the mask hides something"


@pytest.mark.parametrize("kind", CACHES)
def test_a_mask_of_four_axes_has_a_column_for_every_key(kind: str) -> None:
    """Those of a static cache are its places."""
    model, ids = patch_model(llama(max_position_embeddings=8), "alibi", factor=4), torch.arange(3, 15)[None]
    keys, whole = (20, 20) if kind == "static" else (8, 12), model(ids).logits
    shown = torch.arange(24) <= torch.arange(12)[:, None]
    for wrong in (-1, 1):
        with torch.no_grad(), pytest.raises(MaskMismatch, match="columns"):
            model(ids[:, :8], shown[None, None, :8, : keys[0] + wrong], past_key_values=CACHES[kind](model))
    cache = CACHES[kind](model)
    with torch.no_grad():
        first = model(ids[:, :8], shown[None, None, :8, : keys[0]], past_key_values=cache).logits
        with pytest.raises(MaskMismatch, match="columns"):
            model(ids[:, 8:], shown[None, None, 8:, : keys[1] - 1], past_key_values=cache)
        rest = model(ids[:, 8:], shown[None, None, 8:, : keys[1]], past_key_values=cache).logits
    torch.testing.assert_close(torch.cat((first, rest), 1), whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["max_length_q", "max_length_k"])
def test_a_longest_text_that_is_shorter_than_one_is_refused(name: str) -> None:
    model, ids = patch_model(llama(max_position_embeddings=8), "alibi", factor=4), torch.arange(3, 15)[None]
    borders, positions = torch.tensor([0, 5, 12], dtype=torch.int32), torch.tensor([[*range(5), *range(7)]])
    call = {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders, "max_length_q": 7, "max_length_k": 7}
    call |= {"position_ids": positions, "use_cache": False}
    with torch.no_grad(), pytest.raises(InvalidInput, match=f"{name} is 6"):
        model(ids, **call | {name: 6})
    with torch.no_grad():
        torch.testing.assert_close(model(ids, **call)[0][:, 5:], model(ids[:, 5:])[0], rtol=0, atol=1e-5)
