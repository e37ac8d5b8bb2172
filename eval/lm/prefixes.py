"""Whether a token's score depends on more than the tokens before it, and the special tokens around a text.

If it depends only on the tokens before it, one forward pass scores every prefix of a text. If it also depends on the
length of the text (randomised positions, dynamic NTK, encoders), each prefix needs its own pass.
"""

from __future__ import annotations

from typing import Any

from hf_posenc.errors import NotPatched, UnsupportedModel
from hf_posenc.eval.lm.log_probs import unwrapped
from hf_posenc.forward.current_forward import OWNER
from hf_posenc.patches.shared.rope_parameters import by_layer_type
from hf_posenc.patching.layer_schemes import is_causal
from hf_posenc.patching.state import is_patched

LENGTH_DEPENDENT = {"dynamic", "longrope"}
"""RoPE types of transformers whose frequencies change with the length of the text."""


def prefix_consistent(model: Any) -> bool:
    """Whether a token's score depends only on the tokens before it, in every layer."""
    inner = unwrapped(model)
    if not is_decoder(inner):
        return False
    if is_patched(inner):
        schemes = {id(m.scheme): m.scheme for m in inner.modules() if OWNER in m.__dict__}
        return not any(scheme.needs_whole_text or scheme.randomises for scheme in schemes.values())
    rope = getattr(inner.config, "rope_parameters", None) or getattr(inner.config, "rope_scaling", None)
    kinds = {part.get("rope_type", part.get("type")) for part in by_layer_type(rope).values()}
    return not kinds & LENGTH_DEPENDENT


def randomises(model: Any) -> bool:
    """Whether the scheme draws random positions in evaluation."""
    modules = unwrapped(model).modules()
    return any(m.scheme.randomises for m in modules if OWNER in m.__dict__)


def forget_longest(model: Any) -> None:
    """Reset transformers' dynamic RoPE, which otherwise keeps the frequencies of the longest text so far."""
    for module in unwrapped(model).modules():
        for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
            setattr(module, name, 0)


def is_decoder(model: Any) -> bool:
    """Whether the model is a decoder; for a model without an adapter, whether it is no masked language model."""
    try:
        return is_causal(model)
    except (NotPatched, UnsupportedModel):
        return not type(model).__name__.endswith("ForMaskedLM")


def frame_of(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Special tokens before and after every text."""
    marked = list(tokenizer("a", verbose=False)["input_ids"])
    inside = list(tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"])
    starts = (n for n in range(len(marked) - len(inside) + 1) if marked[n : n + len(inside)] == inside)
    start = next(starts, 0)
    return marked[:start], marked[start + len(inside) :]


def opened(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a text with the special tokens before it, without those after it."""
    ids = list(tokenizer(text, verbose=False)["input_ids"])
    _, closing = frame_of(tokenizer)
    return ids[: len(ids) - len(closing)]
