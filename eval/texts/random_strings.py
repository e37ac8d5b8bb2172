"""Random token strings to copy or continue, which requires attention to distant tokens.

copy         x₁ x₂ … xₙ ▏ x₁ x₂ … → xₙ         each token is n positions back
induction    … a b … … … … … … … a → b         the pair occurs once, at a depth

The last tokens are the same at every length, so that only the distance changes. Training models on short strings and
asking them for long ones is how length generalisation is measured: Kazemnejad et al. 2023, arXiv:2305.19466; the second
is the induction of Olsson et al. 2022, arXiv:2209.11895.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hf_posenc.eval.errors import LengthTooShort, TokenizerTooPoor

FEWEST = 8
"""Distinct tokens of a random string; with fewer, guessing is often right."""


def ordinary_tokens(tokenizer: Any, count: int) -> list[int]:
    """The first ``count`` tokens that are not special; in a trained vocabulary the first are the most frequent.

    Raises:
        TokenizerTooPoor: there are fewer than `FEWEST`.
    """
    special = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", {}))
    found = [token for token in sorted(tokenizer.get_vocab().values()) if token not in special][:count]
    if len(found) < FEWEST:
        raise TokenizerTooPoor(
            f"Random strings need {FEWEST} ordinary tokens or more, got {len(found)}. "
            "Raise alphabet, or use a tokenizer with a larger vocabulary."
        )
    return found


def copied(string: Sequence[int], room: int) -> list[int]:
    """The end of ``string``, twice: as long as fits ``room`` tokens.

    Raises:
        LengthTooShort: not even one token fits twice.
    """
    half = room // 2
    if half < 1:
        raise LengthTooShort(f"A string and its copy do not fit {room} tokens. Ask for longer lengths.")
    return [*string[-half:], *string[-half:]]


def induced(filler: Sequence[int], pair: tuple[int, int], depth: float, room: int) -> list[int]:
    """The end of ``filler`` with ``pair`` at ``depth``, and the pair again: ``room`` tokens.

    Raises:
        LengthTooShort: the pair does not fit twice with a token between.
    """
    free = room - 4
    if free < 1:
        raise LengthTooShort(f"A pair that comes twice does not fit {room} tokens. Ask for lengths above {room + 4}.")
    kept = filler[-free:]
    before = round(depth * (free - 1))  # never the neighbour of its own question
    return [*kept[:before], *pair, *kept[before:], *pair]


def random_string(tokens: Sequence[int], count: int, rng: random.Random) -> list[int]:
    """``count`` tokens, drawn with repeats."""
    return [rng.choice(tokens) for _ in range(count)]
