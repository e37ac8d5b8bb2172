"""SGLang, and vLLM before its pull request 48351: read in ``srt/layers/rotary_embedding`` of SGLang's repository."""

from __future__ import annotations

from hf_posenc.checkpoints.readers import vllm
from hf_posenc.checkpoints.readers.stated import (
    ReadRotation,
    Stated,
    Unread,
    by_mscales,
    by_type,
    grown,
    powers,
    proportional_divided,
    unscaled,
    unscaled_head,
    yarn_frequencies,
)

NAME = "SGLang, older vLLM"
BY_LAYER_TYPE = ("gemma3_text", "modernbert")
"""Models with parameters by type of layer that were read, in ``srt/models``."""


def read(stated: Stated) -> ReadRotation:
    """What SGLang computes.

    Raises:
        Unread: it knows no such RoPE type.
    """
    return by_type(stated, FORMULAS) if stated.layers is None else of_layer_type(stated)


def of_layer_type(stated: Stated) -> ReadRotation:
    """Layers with a window are never scaled, and no layers of ModernBERT are.

    Raises:
        Unread: it counts no positions past a window.
    """
    if stated.model_type == "modernbert":
        if stated.sliding:
            raise Unread("it takes every position past the window for its last one in layers with a window")
        return unscaled(stated)
    return unscaled(stated) if stated.sliding else by_type(stated, OF_TRANSFORMERS)


def dynamic(stated: Stated) -> ReadRotation:
    """Static: the base of the longest text at every length."""
    s, dims = stated.factor, stated.rotary_dim
    return ReadRotation(powers(stated.theta * (s * s - (s - 1)) ** (dims / (dims - 2)), dims))


def yarn(stated: Stated) -> ReadRotation:
    """``attn_factor`` multiplies the pair of mscales, or 0.1 ln s + 1; ``attention_factor`` is not read."""
    given = stated.parameters
    own = by_mscales(stated) or grown(stated.factor)
    return ReadRotation(
        yarn_frequencies(stated, truncate=given.get("truncate", True)), own * given.get("attn_factor", 1.0)
    )


FORMULAS = {"dynamic": dynamic, "yarn": yarn, "proportional": unscaled_head}
"""Of ``proportional`` it looks for the share beside ``rope_parameters``, where transformers 5 leaves none."""
OF_TRANSFORMERS = vllm.FORMULAS | {"proportional": proportional_divided}
"""Its class of Gemma 3 calls transformers' own functions, which read what today's vLLM reads."""
