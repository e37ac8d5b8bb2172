"""Special tokens that a tokenizer adds around every text: a begin token, an end token, both, or none."""

from __future__ import annotations

from typing import Any


def front_of(tokenizer: Any) -> list[int]:
    """Special tokens before every text."""
    return frame_of(tokenizer)[0]


def closing_of(tokenizer: Any) -> list[int]:
    """Special tokens after every text."""
    return frame_of(tokenizer)[1]


def frame_of(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Special tokens before and after every text."""
    marked = list(tokenizer("a", verbose=False)["input_ids"])
    inside = list(tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"])
    starts = (n for n in range(len(marked) - len(inside) + 1) if marked[n : n + len(inside)] == inside)
    start = next(starts, 0)
    return marked[:start], marked[start + len(inside) :]


def opened(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a text to be continued: with the special tokens before it, without those after it."""
    ids, closing = list(tokenizer(text, verbose=False)["input_ids"]), closing_of(tokenizer)
    return ids[: len(ids) - len(closing)]
