"""Texts of a row are as alone or refused, under every scheme, whatever says where they begin."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from transformers import DynamicCache

from hf_posenc import list_schemes, patch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import InvalidInput, MaskMismatch, PosEncError

SIZES = (7, 20, 13)  # within the tables of the tiny models
LENGTH = sum(SIZES)
ATOL = 1e-4  # of logits near 1: float32 sums of two routes
NOT_REPEATED = {"randpos"}  # draws other positions in every call
SCHEMES = sorted({str(getattr(one, "name", one)) for one in list_schemes()} - NOT_REPEATED)

POSITIONS = torch.cat([torch.arange(size) for size in SIZES])[None]
TEXTS = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
FULL = (TEXTS[:, None] == TEXTS)[None, None]
BORDERS = torch.tensor([0, *accumulate(SIZES)], dtype=torch.int32)
PACKED = {"cu_seq_lens_q": BORDERS, "cu_seq_lens_k": BORDERS, "max_length_q": 20, "max_length_k": 20}


def ways(mask: Tensor) -> dict[str, dict[str, Any]]:
    """Calls that say where texts begin, by what says it."""
    added = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    return {
        "positions": {"position_ids": POSITIONS},
        "keywords beside positions": {"position_ids": POSITIONS, "seq_idx": TEXTS[None], **PACKED},
        "mask": {"attention_mask": mask}, "mask of numbers": {"attention_mask": added},
        "mask and positions": {"attention_mask": mask, "position_ids": POSITIONS},
        "keywords beside a mask": {"attention_mask": mask, **PACKED},
    }  # fmt: skip


def tokens() -> Tensor:
    return torch.randint(3, 90, (1, LENGTH), generator=torch.Generator().manual_seed(3))


def patched(family: str, scheme: str) -> Any:
    """A patched model, stretched where the scheme stretches; skips what is not defined."""
    for options in ({"factor": 2}, {}):
        try:
            return patch_model(tiny_model(family), scheme, **options)
        except PosEncError as refused:
            reason = str(refused)
    pytest.skip(reason)


@torch.no_grad()
def alone(model: Any) -> Tensor:
    try:
        return torch.cat([model(text)[0] for text in tokens().split(SIZES, dim=1)], dim=1)
    except IndexError as refused:
        pytest.skip(str(refused))


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_decoder(scheme: str, backend: str) -> None:
    model = patched("llama", scheme)
    model.set_attn_implementation(backend)
    expected = alone(model)
    for way, call in ways(FULL.tril()).items():
        with torch.no_grad():
            assert float((model(tokens(), **call)[0] - expected).abs().max()) <= ATOL, way
    with torch.no_grad():  # control: as one text they differ
        assert float((model(tokens())[0] - expected).abs().max()) > 100 * ATOL


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "t5", "self_extend", "dca", "sinks", "fox", "cope", "deberta"])
@torch.no_grad()
def test_rows_with_borders_of_their_own(scheme: str) -> None:
    model, rows, sizes = patched("llama", scheme), tokens().expand(2, -1), (SIZES, (26, 1, 13))
    positions = torch.stack([torch.cat([torch.arange(size) for size in of_row]) for of_row in sizes])
    packed = model(rows, position_ids=positions, use_cache=False).logits
    for found, of_row in zip(packed, sizes, strict=True):
        expected = torch.cat([model(text).logits[0] for text in tokens().split(of_row, dim=1)])
        torch.testing.assert_close(found, expected, atol=ATOL, rtol=0)


@torch.no_grad()
def test_positions_that_jump_under_a_mask_of_ones_are_one_text() -> None:
    """As when training on rows whose positions skip: transformers makes no mask of texts then."""
    model, changed = patched("llama", "yarn"), tokens()
    changed[:, 0] += 1
    jumping = torch.arange(LENGTH)[None] + 20 * (torch.arange(LENGTH) >= 30)
    call = {"position_ids": jumping, "attention_mask": torch.ones_like(changed), "use_cache": False}
    assert (model(tokens(), **call).logits - model(changed, **call).logits)[:, -1].abs().max() > ATOL


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_encoder_by_mask(scheme: str) -> None:
    model = patched("bert", scheme)
    expected = alone(model)
    with torch.no_grad():
        assert float((model(tokens(), attention_mask=FULL)[0] - expected).abs().max()) <= ATOL
    with pytest.raises(MaskMismatch, match="an encoder reads the row as one text"):
        model(tokens(), position_ids=POSITIONS)


REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "keywords alone": lambda: PACKED,
    "text numbers alone": lambda: {"seq_idx": TEXTS[None]},
    "keywords beside a mask of ones": lambda: {
        **PACKED,
        "position_ids": POSITIONS,
        "attention_mask": torch.ones(1, LENGTH),
    },
    "other borders": lambda: {"position_ids": POSITIONS, "cu_seq_lens_q": torch.tensor([0, 7, LENGTH])},
    "borders of less": lambda: {"position_ids": POSITIONS, "cu_seq_lens_k": BORDERS[:-1]},
    "other text numbers": lambda: {"position_ids": POSITIONS, "seq_idx": TEXTS.flip(0)[None]},
    "positions with a cache": lambda: {"position_ids": POSITIONS, "past_key_values": DynamicCache()},
    "positions to be cached": lambda: {"position_ids": POSITIONS, "use_cache": True},
    "a mask to be cached": lambda: {"attention_mask": FULL.tril(), "use_cache": True},
}
BY_ROUTE = ["yarn", "pi", "host", "logn", "none", "alibi", "rerope", "learned"]


@pytest.mark.parametrize("call", REFUSED)
@pytest.mark.parametrize("scheme", BY_ROUTE)
def test_what_is_refused_under_one_scheme_is_under_all(scheme: str, call: str) -> None:
    with pytest.raises(MaskMismatch):
        patched("llama", scheme)(tokens(), **REFUSED[call]())


@pytest.mark.parametrize("chunk", [SIZES[0], SIZES[0] + 5])
def test_a_text_that_begins_in_a_later_chunk_is_refused(chunk: int) -> None:
    """It would be numbered on from the tokens in the cache."""
    model, cache, mask = patched("llama", "sinks"), DynamicCache(), FULL[..., :27, :27].tril()
    calls = [(0, chunk), (chunk, 27)] if chunk == SIZES[0] else [(0, chunk)]
    *before, last = [
        {"input_ids": tokens()[:, a:b], "attention_mask": mask[..., a:b, :b], "past_key_values": cache}
        for a, b in calls
    ]
    with torch.no_grad():
        for call in before:
            model(**call)
        with pytest.raises(MaskMismatch, match="as one text"):
            model(**last)


def test_a_block_mask_needs_positions() -> None:
    model = patched("llama", "yarn")
    model.set_attn_implementation("flex_attention")
    texts = TEXTS
    mask = create_block_mask(lambda b, h, q, k: (q >= k) & (texts[q] == texts[k]), 1, None, LENGTH, LENGTH, "cpu")
    with pytest.raises(MaskMismatch, match="BlockMask separates texts"):
        model(tokens(), attention_mask=mask, use_cache=False)


LENGTH_READERS = [("bert", "dynamic_yarn"), ("bert", "longrope"), ("llama", "norm01")]


@torch.no_grad()
@pytest.mark.parametrize(("family", "scheme"), LENGTH_READERS)
def test_lengths_read_from_positions(family: str, scheme: str) -> None:
    """Numbered padding adds nothing to the length of a text, and a text out of order or with a hole is refused."""
    model, ids = patched(family, scheme), tokens()
    uncached = {"use_cache": False} if family == "llama" else {}
    end, numbers = SIZES[0] + SIZES[1], torch.arange(LENGTH)[None]
    real = numbers < end
    expected = model(ids[:, :end], **uncached).logits
    seen = numbers.mT >= (numbers if uncached else 0)
    for mask in (real.long(), (seen & real)[None, None]):
        output = model(ids, attention_mask=mask, position_ids=numbers, **uncached)
        assert (output.logits[:, :end] - expected).abs().max() < ATOL
    hole = {"attention_mask": (numbers != end).long()}
    turned = numbers.roll(5, 1)
    order = {
        "position_ids": turned,
        "attention_mask": (turned.mT >= (turned if uncached else 0)).expand(1, 1, LENGTH, LENGTH),
    }
    for call in (hole, order):
        with pytest.raises(InvalidInput, match=f"'{scheme}' reads the length"):
            model(ids, **call, **uncached)
