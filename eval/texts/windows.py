"""Windows of text: the same last tokens, with increasing context before them.

    length 256                         … context ▏ target
    length 512         … … … … … … … … … context ▏ target

The target is a fixed sequence of tokens; the context reaches back as far as the length allows. Texts are cut at the
tokenizer's own offsets, never by decoding. Each cut is checked: context and target must have the same tokens whether
they are tokenized separately or together. If the tokenizer merges across a cut, the context starts one token later, or
the whole window moves on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hf_posenc.eval.errors import CannotCut, LengthTooShort
from hf_posenc.eval.lm.prefixes import opened
from hf_posenc.eval.texts.measured_text import MeasuredText
from hf_posenc.eval.texts.sampling import SHIFTS, Tokenized, distinct
from hf_posenc.patching.weights import check_known

FARTHEST = 16 * SHIFTS
"""Most tokens by which a window is moved: the tokens of a long line of one character depend on where it starts."""


@dataclass(frozen=True)
class TextWindow:
    """Target and contexts as text, shortest context first; ``end`` is the token after the target."""

    end: int
    target: str
    contexts: tuple[str, ...]


def tokenized_documents(tokenizer: Any, text: MeasuredText) -> tuple[Tokenized, ...]:
    """Tokenize the documents of a text; cached, because a sweep uses the same text many times."""
    return _tokenized_documents(tokenizer, len(tokenizer), text)


@lru_cache(maxsize=2)
def _tokenized_documents(tokenizer: Any, size: int, text: MeasuredText) -> tuple[Tokenized, ...]:
    """Cached part of `tokenized_documents`; ``size`` is in the key because tokens may be added between two calls."""
    names = distinct([document.name for document in text.documents]) if len(text.documents) > 1 else [""]
    return tuple(
        tokenized(tokenizer, document.content, name) for document, name in zip(text.documents, names, strict=True)
    )


def tokenized(tokenizer: Any, text: str, name: str = "") -> Tokenized:
    """Tokenize a text with a fast tokenizer, which returns offsets."""
    if not tokenizer.is_fast:
        raise CannotCut(
            f"{type(tokenizer).__name__} does not return character offsets. Load the fast version of this tokenizer."
        )
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    check_known(tokenizer, encoding["input_ids"])
    return Tokenized(text, tuple(encoding["input_ids"]), tuple(map(tuple, encoding["offset_mapping"])), name)


def check_room(lengths: Sequence[int], scored: int) -> None:
    """Refuse lengths that leave no room for context before the scored tokens."""
    if min(lengths) <= scored:
        raise LengthTooShort(
            f"A length of {min(lengths)} tokens has no room for context before {scored} scored ones. "
            f"Ask for lengths above {scored}, or score fewer tokens."
        )


def windows_at(
    source: Tokenized, tokenizer: Any, near: Sequence[int], *, lengths: Sequence[int], scored: int
) -> list[TextWindow]:
    """Windows that end at the tokens ``near``, or at the next tokens where a clean cut is possible."""
    check_room(lengths, scored)
    last = 0
    windows = []
    for end in near:
        window = first_window(source, tokenizer, max(end, last + 1), lengths, scored)
        last = window.end
        windows.append(window)
    return windows


def first_window(source: Tokenized, tokenizer: Any, end: int, lengths: Sequence[int], scored: int) -> TextWindow:
    """The first window that ends at or after ``end`` and whose target is cleanly cut from a short context.

    The choice depends on the text around the target, not on ``lengths``, so every length has the same targets.
    """
    for last in range(end, min(end + FARTHEST, len(source.ids)) + 1):
        target = last - scored
        if clean(source, tokenizer, target - scored, target, last):
            return TextWindow(last, *cut(source, tokenizer, lengths, target, last))
    raise CannotCut(
        f"Within {FARTHEST} tokens of token {end}, the text cannot be cut without changing its tokens. Use another "
        "text or tokenizer."
    )


def cut(
    source: Tokenized, tokenizer: Any, lengths: Sequence[int], target: int, last: int
) -> tuple[str, tuple[str, ...]]:
    """Text of the target, and text of the longest clean context for each length."""
    special = len(opened(tokenizer, ""))
    contexts = []
    for length in lengths:
        starts = range(max(0, last - length + special), target)
        start = next((s for s in starts[:SHIFTS] if clean(source, tokenizer, s, target, last, length)), None)
        if start is None:
            raise CannotCut(
                f"No context of about {length} tokens before token {target} can be cut from the text without changing "
                "its tokens. Use another text or tokenizer."
            )
        contexts.append(source.text[source.spans[start][0] : source.spans[target][0]])
    return source.piece(target, last), tuple(contexts)


def clean(source: Tokenized, tokenizer: Any, start: int, target: int, last: int, length: int | None = None) -> bool:
    """Whether context and target have the same tokens separately and together, and fit ``length``."""
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
