"""Spans of tokens to score, and the fewest forward passes that score them.

    span (0, 256, 512)       tokens 256 … 511 of a text, with context from token 0
    span (0, 512, 1024)      tokens 512 … 1023 of it

Where a token's score depends on the tokens before it alone, one pass up to 1024 answers both. Where it depends on the
length of the text (randomised positions, dynamic NTK, encoders), each end has a pass of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_posenc.errors import NotPatched, UnsupportedModel
from hf_posenc.eval.lm.log_probs import unwrapped
from hf_posenc.forward.current_forward import OWNER
from hf_posenc.patches.shared.rope_parameters import by_layer_type
from hf_posenc.patching.layer_schemes import is_causal
from hf_posenc.patching.state import is_patched

Span = tuple[int, int, int]
"""First token of the context, first token scored, end."""

LENGTH_DEPENDENT = {"dynamic", "longrope"}
"""RoPE types of transformers whose frequencies change with the length of the text."""


@dataclass(frozen=True)
class Pass:
    """Tokens of one forward pass, of which the last is a target only, and how many at its end are scored.

    It answers spans by their numbers, each by a slice of the scores that are kept.
    """

    tokens: tuple[int, ...]
    keep: int
    answers: tuple[tuple[int, slice], ...]


def passes(front: Sequence[int], ids: Sequence[int], spans: Sequence[Span], *, prefixes: bool) -> list[Pass]:
    """Forward passes that score ``spans`` of ``ids`` after ``front``; of ``prefixes`` of a text, one scores all."""
    groups: dict[tuple[int, int], list[int]] = {}
    last: dict[int, int] = {}
    for start, _, end in spans:
        last[start] = max(end, last.get(start, 0))
    for number, (start, _, end) in enumerate(spans):
        groups.setdefault((start, last[start] if prefixes else end), []).append(number)
    found = []
    for (start, end), numbers in groups.items():
        first = min(spans[number][1] for number in numbers)
        where = [(n, slice(spans[n][1] - first, spans[n][2] - first)) for n in numbers]
        found.append(Pass((*front, *ids[start:end]), end - first, tuple(where)))
    return found


def prefix_consistent(model: Any) -> bool:
    """Whether a token's score depends on the tokens before it alone, in every layer."""
    inner = unwrapped(model)
    if not is_decoder(inner):
        return False
    if is_patched(inner):
        schemes = {id(m.scheme): m.scheme for m in inner.modules() if OWNER in m.__dict__}
        return not any(scheme.needs_whole_text or scheme.randomises for scheme in schemes.values())
    return not rope_types(inner.config) & LENGTH_DEPENDENT


def randomises(model: Any) -> bool:
    """Whether the scheme draws random positions in evaluation."""
    modules = unwrapped(model).modules()
    return any(m.scheme.randomises for m in modules if OWNER in m.__dict__)


def forget_longest(model: Any) -> None:
    """Reset transformers' dynamic RoPE, which would keep the frequencies of the longest text so far."""
    for module in unwrapped(model).modules():
        for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
            setattr(module, name, 0)


def is_decoder(model: Any) -> bool:
    """Whether the model is a decoder; without an adapter, whether its class is not a masked language model."""
    try:
        return is_causal(model)
    except (NotPatched, UnsupportedModel):
        return not type(model).__name__.endswith("ForMaskedLM")


def rope_types(config: Any) -> set[str]:
    """All RoPE types of a configuration; layers may have their own."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    return {str(part.get("rope_type", part.get("type", ""))) for part in by_layer_type(rope).values()}


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
