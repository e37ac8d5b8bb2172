"""Positions of the caller's own: with gaps, or starting again, read with a cache as without one."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, StaticCache

from hf_posenc.checks import Case
from hf_posenc.checks.forward import (
    forward,
    max_deviation,
    new_cache,
    random_tokens,
)
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.errors import InvalidInput

from .matrix import CONTINUED

RELATIVE = [
    p for p in CONTINUED if p.scheme_name in ("alibi", "t5", "rope", "kerple", "transformer_xl", "fox", "rerope")
]
BY_PLACE = [p for p in CONTINUED if p.scheme_name in ("dca", "sinks", "lm_infinite", "logn", "alibi")]


def with_a_gap() -> torch.Tensor:
    places = torch.arange(TRAINED_LENGTH)
    places[TRAINED_LENGTH // 2 :] += 5
    return places[None]


@pytest.mark.parametrize("pair", RELATIVE, ids=str)
def test_a_cache_does_not_move_the_tokens(pair: Case) -> None:
    """`use_cache` is on by default: the cache it makes must not number the tokens anew."""
    with pair.patched() as model:
        tokens, places = random_tokens(model, TRAINED_LENGTH), with_a_gap()
        mask = torch.ones_like(tokens)
        without = forward(model, tokens, position_ids=places, attention_mask=mask)
        with torch.no_grad():
            cached = model(tokens, position_ids=places, attention_mask=mask, use_cache=True).logits
        value, where = max_deviation(cached, without)
        assert value <= pair.limit("cache"), where
        plain = forward(model, tokens)
        assert max_deviation(without[:, : TRAINED_LENGTH // 2], plain[:, : TRAINED_LENGTH // 2])[0] <= pair.limit(
            "cache"
        )
        gates = pair.scheme_name == "fox"  # it counts content, and knows no positions
        assert gates or pair.model_name != "llama" or max_deviation(without, plain)[0] > 0.1  # control: the gap shows


@pytest.mark.parametrize("pair", RELATIVE, ids=str)
def test_positions_that_start_again_show_no_future(pair: Case) -> None:
    """With a cache transformers sees one text in them; a key is then behind a query by place, not by position."""
    with pair.patched() as model, torch.no_grad():
        tokens = random_tokens(model, TRAINED_LENGTH)
        places = (torch.arange(TRAINED_LENGTH) % (TRAINED_LENGTH // 2))[None]
        before = model(tokens, position_ids=places, use_cache=True).logits
        changed = tokens.clone()
        changed[:, TRAINED_LENGTH - 3] = 3 + (changed[:, TRAINED_LENGTH - 3] - 2) % 7
        after = model(changed, position_ids=places, use_cache=True).logits
        assert torch.equal(after[:, : TRAINED_LENGTH - 3], before[:, : TRAINED_LENGTH - 3])


@pytest.mark.parametrize("pair", BY_PLACE, ids=str)
def test_rows_that_count_from_elsewhere_go_on_from_a_cache(pair: Case) -> None:
    """The mask of a later chunk is the same in all rows of a batch; where their tokens stand is not."""
    with pair.patched() as model, torch.no_grad():
        tokens = random_tokens(model, 2 * TRAINED_LENGTH // 3, rows=2)
        places = torch.arange(tokens.shape[1])[None] + torch.tensor([[0], [TRAINED_LENGTH // 3]])
        alone = torch.cat([forward(model, tokens[row, None], position_ids=places[row, None]) for row in (0, 1)])
        cache, cut = DynamicCache(), TRAINED_LENGTH // 3
        parts = [
            model(tokens[:, some], position_ids=places[:, some], past_key_values=cache).logits
            for some in (slice(None, cut), slice(cut, cut + 1), slice(cut + 1, None))
        ]
        value, where = max_deviation(torch.cat(parts, dim=1), alone)
        assert value <= pair.limit("cache"), where


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("scheme", ["yarn", "alibi", "dca"])
def test_a_mask_of_all_places_of_a_static_cache(scheme: str, ahead: int) -> None:
    """What it says of places that are not written yet moves no token; row 0 is padded on the left."""
    (pair,) = [p for p in CONTINUED if p.scheme_name == scheme and p.model_name == "llama"]
    with pair.patched() as model:
        length, pads = TRAINED_LENGTH // 2, 5
        tokens, cache = random_tokens(model, length, rows=2), new_cache(StaticCache, model, length + 7)
        parts = []
        for some in (slice(0, 8), slice(8, 9), slice(9, length)):
            mask = torch.ones(2, length + 7, dtype=torch.long)
            mask[:, some.stop :], mask[0, :pads] = ahead, 0
            parts.append(forward(model, tokens[:, some], attention_mask=mask, past_key_values=cache))
        together = torch.cat(parts, dim=1)
        assert max_deviation(together[:1, pads:], forward(model, tokens[:1, pads:]))[0] <= pair.limit("cache")
        assert max_deviation(together[1:], forward(model, tokens[1:]))[0] <= pair.limit("cache")


@pytest.mark.parametrize("scheme", ["yarn", "alibi"])
def test_a_chunk_of_padding_goes_before_its_text(scheme: str) -> None:
    """A prefill in chunks may make its cache by `use_cache=True` from a chunk in which a row has no text yet."""
    (pair,) = [p for p in CONTINUED if p.scheme_name == scheme and p.model_name == "llama"]
    with pair.patched() as model, torch.no_grad():
        tokens, mask = random_tokens(model, 20, rows=2), torch.ones(2, 20, dtype=torch.long)
        mask[0, :7] = 0
        first = model(tokens[:, :6], attention_mask=mask[:, :6], use_cache=True)
        rest = model(tokens[:, 6:], attention_mask=mask, past_key_values=first.past_key_values).logits
        assert max_deviation(rest[:1, 1:], forward(model, tokens[:1, 7:]))[0] <= pair.limit("cache")
        assert max_deviation(rest[1:], forward(model, tokens[1:])[:, 6:])[0] <= pair.limit("cache")


@pytest.mark.parametrize("pair", [pair for pair in RELATIVE if pair.model_name == "llama"], ids=str)
def test_negative_positions_of_padding(pair: Case) -> None:
    """``mask.cumsum(-1) - 1`` numbers left padding −1; only real tokens have to stand in the text."""
    with pair.patched() as model:
        tokens = random_tokens(model, TRAINED_LENGTH, rows=2)
        mask = torch.ones_like(tokens)
        mask[0, :7] = 0
        places = mask.cumsum(-1) - 1
        given = forward(model, tokens, attention_mask=mask, position_ids=places)
        worked_out = forward(model, tokens, attention_mask=mask)
        assert max_deviation(given, worked_out, mask.bool())[0] <= pair.limit("cache")
        with pytest.raises(InvalidInput, match="Position -1 is before the start"):
            forward(model, tokens, position_ids=places)
