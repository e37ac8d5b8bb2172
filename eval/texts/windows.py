"""Windows of text: the same last tokens, with increasing context before them.

    length 256                         … context ▏ target
    length 512         … … … … … … … … … context ▏ target

The target is a fixed run of tokens; the context reaches back as far as the length allows. Texts are cut at the
tokenizer's own offsets, never by decoding, and each cut is checked: context and target must have the same tokens
apart and joined. Where the tokenizer merges across a cut, the start moves up a token, or the whole window moves on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hf_posenc.errors import shown
from hf_posenc.eval.errors import CannotCut, LengthTooShort, TextTooShort
from hf_posenc.eval.lm.special_tokens import opened
from hf_posenc.eval.texts.stdlib_source import HELD_OUT, module_text
from hf_posenc.eval.texts.text_file import read_text
from hf_posenc.patching.preconditions.weights import check_known

SHIFTS = 64
"""Tokens a window may move on, and a context may be shortened by, to find a clean cut."""


@dataclass(frozen=True)
class Tokenized:
    """A text, its tokens without special ones, and where in the text each begins and ends."""

    text: str
    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]

    def piece(self, first: int, last: int) -> str:
        """The text of tokens ``first`` up to, without, ``last``."""
        return self.text[self.spans[first][0] : self.spans[last - 1][1]]


@dataclass(frozen=True)
class Window:
    """A target and its contexts, shortest length first, as text."""

    end: int
    target: str
    contexts: tuple[str, ...]


def source_text(path: str | Path | None) -> str:
    """The text of a file as it is now; without one, the held-out modules of this Python's standard library.

    Raises:
        UnreadableDocuments: the file cannot be read.
        TextTooShort: it is all white space.
    """
    if path is None:
        return held_out_text()
    text = read_text(path)
    if text and not text.strip():
        raise TextTooShort(f"The text {shown(str(path))} holds nothing but white space. Give one with words.")
    return text


@lru_cache(maxsize=1)
def held_out_text() -> str:
    """The held-out modules, which do not change."""
    return "\n".join(module_text(name) for name in HELD_OUT)


@lru_cache(maxsize=8)
def tokenized(tokenizer: Any, text: str) -> Tokenized:
    """``text`` through a fast tokenizer; cached, because a sweep uses the same text many times."""
    if not tokenizer.is_fast:
        raise CannotCut(f"{type(tokenizer).__name__} keeps no offsets. Load the fast version of this tokenizer.")
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    check_known(tokenizer, encoding["input_ids"])
    return Tokenized(text, tuple(encoding["input_ids"]), tuple(map(tuple, encoding["offset_mapping"])))


def ends(tokens: int, count: int, longest: int) -> list[int]:
    """Where ``count`` windows end, spread evenly over ``tokens`` tokens; each has ``longest`` tokens before it."""
    room = tokens - longest - SHIFTS
    if room < count:
        raise TextTooShort(
            f"{count} windows of {longest} tokens need {longest + SHIFTS + count} tokens of text, got {tokens}. "
            "Give a longer text, shorter lengths or fewer samples."
        )
    return [longest + i * room // max(1, count - 1) for i in range(count)]


def check_room(lengths: Sequence[int], scored: int) -> None:
    """Refuse lengths that the scored tokens would fill."""
    if min(lengths) <= scored:
        raise LengthTooShort(
            f"A length of {min(lengths)} tokens has no room for context before {scored} scored ones. "
            f"Ask for lengths above {scored}, or score fewer tokens."
        )


def windows(
    source: Tokenized, tokenizer: Any, *, lengths: Sequence[int], scored: int, count: int, longest: int
) -> list[Window]:
    """Return ``count`` windows; targets have ``scored`` tokens and depend on ``longest``, not on ``lengths``."""
    check_room(lengths, scored)
    last = 0
    found = []
    for end in ends(len(source.ids), count, longest):
        window = first_window(source, tokenizer, max(end, last + 1), lengths, scored)
        last = window.end
        found.append(window)
    return found


def first_window(source: Tokenized, tokenizer: Any, end: int, lengths: Sequence[int], scored: int) -> Window:
    """The first window that ends at or after ``end`` and whose target is cut cleanly from a short context.

    The choice looks at the target's neighbourhood, never at ``lengths``, so that every length has the same targets.
    """
    for last in range(end, min(end + SHIFTS, len(source.ids)) + 1):
        target = last - scored
        if clean(source, tokenizer, target - scored, target, last):
            return Window(last, *cut(source, tokenizer, lengths, target, last))
    raise CannotCut(f"No clean cut within {SHIFTS} tokens of token {end} of the text. Use another text or tokenizer.")


def cut(
    source: Tokenized, tokenizer: Any, lengths: Sequence[int], target: int, last: int
) -> tuple[str, tuple[str, ...]]:
    """Text of the target, and of the longest clean context for each length."""
    special = len(opened(tokenizer, ""))
    contexts = []
    for length in lengths:
        starts = range(max(0, last - length + special), target)
        start = next((s for s in starts[:SHIFTS] if clean(source, tokenizer, s, target, last, length)), None)
        if start is None:
            raise CannotCut(f"No clean context of {length} tokens before token {target} of the text. Use another text.")
        contexts.append(source.text[source.spans[start][0] : source.spans[target][0]])
    return source.piece(target, last), tuple(contexts)


def clean(source: Tokenized, tokenizer: Any, start: int, target: int, last: int, length: int | None = None) -> bool:
    """Whether context and target have the same tokens apart and joined, and fit ``length``."""
    context = source.text[source.spans[start][0] : source.spans[target][0]]
    if not context or context != context.rstrip():  # lm-eval moves trailing blanks from the context to the target
        return False
    joined = opened(tokenizer, context + source.piece(target, last))
    scored = last - target
    return (
        (length is None or len(joined) <= length)
        and tuple(joined[-scored:]) == source.ids[target:last]
        and opened(tokenizer, context) == joined[:-scored]
    )
