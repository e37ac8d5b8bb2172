"""Explicit `position_ids`, with gaps or restarts, give the same outputs with and without a KV cache."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, StaticCache

from hf_posenc.checks import Case
from hf_posenc.checks.forward import forward, max_deviation, new_cache, random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.errors import InvalidInput

from .case_lists import CACHEABLE

LLAMA = {case.scheme_name: case for case in CACHEABLE if case.model_name == "llama"}
RELATIVE = [LLAMA[name] for name in ("alibi", "t5", "rope", "transformer_xl", "fox", "rerope")]
POSITION_DEPENDENT = [LLAMA[name] for name in ("dca", "sinks", "logn", "alibi")]


@pytest.mark.parametrize("case", RELATIVE, ids=str)
def test_restarting_positions_stay_causal(case: Case) -> None:
    """Under a mask of ones the row is one text: causality follows the order of tokens, not positions."""
    with case.patched() as model, torch.no_grad():
        tokens = random_tokens(model, TRAINED_LENGTH)
        positions = (torch.arange(TRAINED_LENGTH) % (TRAINED_LENGTH // 2))[None]
        one_text = {"position_ids": positions, "attention_mask": torch.ones_like(tokens), "use_cache": True}
        before = model(tokens, **one_text).logits
        changed = tokens.clone()
        changed[:, TRAINED_LENGTH - 3] = 3 + (changed[:, TRAINED_LENGTH - 3] - 2) % 7
        after = model(changed, **one_text).logits
        assert torch.equal(after[:, : TRAINED_LENGTH - 3], before[:, : TRAINED_LENGTH - 3])


@pytest.mark.parametrize("case", POSITION_DEPENDENT, ids=str)
def test_rows_with_different_first_positions_in_a_cache(case: Case) -> None:
    """The mask of a later chunk is equal in all rows; the positions of their tokens are not."""
    with case.patched() as model, torch.no_grad():
        tokens = random_tokens(model, 2 * TRAINED_LENGTH // 3, rows=2)
        positions = torch.arange(tokens.shape[1])[None] + torch.tensor([[0], [TRAINED_LENGTH // 3]])
        single = torch.cat([forward(model, tokens[row, None], position_ids=positions[row, None]) for row in (0, 1)])
        cache, cut = DynamicCache(), TRAINED_LENGTH // 3
        parts = [
            model(tokens[:, some], position_ids=positions[:, some], past_key_values=cache).logits
            for some in (slice(None, cut), slice(cut, cut + 1), slice(cut + 1, None))
        ]
        value, where = max_deviation(torch.cat(parts, dim=1), single)
        assert value <= case.tolerance("cache"), where


@pytest.mark.parametrize("mask_value", [0, 1])
@pytest.mark.parametrize("scheme", ["yarn", "alibi", "dca"])
def test_a_mask_of_the_whole_static_cache(scheme: str, mask_value: int) -> None:
    """Mask entries of positions not written yet have no effect; row 0 is left-padded."""
    case = LLAMA[scheme]
    with case.patched() as model:
        length, pads = TRAINED_LENGTH // 2, 5
        tokens, cache = random_tokens(model, length, rows=2), new_cache(StaticCache, model, length + 7)
        parts = []
        for some in (slice(0, 8), slice(8, 9), slice(9, length)):
            mask = torch.ones(2, length + 7, dtype=torch.long)
            mask[:, some.stop :], mask[0, :pads] = mask_value, 0
            parts.append(forward(model, tokens[:, some], attention_mask=mask, past_key_values=cache))
        batched = torch.cat(parts, dim=1)
        assert max_deviation(batched[:1, pads:], forward(model, tokens[:1, pads:]))[0] <= case.tolerance("cache")
        assert max_deviation(batched[1:], forward(model, tokens[1:]))[0] <= case.tolerance("cache")


@pytest.mark.parametrize("case", RELATIVE, ids=str)
def test_negative_positions_in_padding(case: Case) -> None:
    """``mask.cumsum(-1) - 1`` gives left padding position −1; only real tokens need valid positions."""
    with case.patched() as model:
        tokens = random_tokens(model, TRAINED_LENGTH, rows=2)
        mask = torch.ones_like(tokens)
        mask[0, :7] = 0
        positions = mask.cumsum(-1) - 1
        given = forward(model, tokens, attention_mask=mask, position_ids=positions)
        derived = forward(model, tokens, attention_mask=mask)
        assert max_deviation(given, derived, mask.bool())[0] <= case.tolerance("cache")
        with pytest.raises(InvalidInput, match="Position -1 is before the start"):
            forward(model, tokens, position_ids=positions)


def test_negative_positions_before_unwritten_places() -> None:
    """A mask over all places of a static cache ends with zeros, which are not those of the new tokens."""
    with LLAMA["rope"].patched() as model:
        cache = StaticCache(config=model.config, max_cache_len=12)
        mask, positions = (torch.arange(12) < 8)[None], torch.tensor([[0, 1, 2, 3, 4, 5, 6, -1]])
        with pytest.raises(InvalidInput, match="Position -1 is before the start"):
            model(random_tokens(model, 8), attention_mask=mask, position_ids=positions, past_key_values=cache)
