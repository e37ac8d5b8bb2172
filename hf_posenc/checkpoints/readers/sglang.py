"""SGLang, and vLLM before its pull request 48351: read in ``srt/layers/rotary_embedding`` of SGLang's repository.

Gemma 3 (``srt/models/gemma3_causal.py``) has transformers' functions in its full layers, and no scaling in the others.
"""

from __future__ import annotations

from hf_posenc.checkpoints.readers import vllm
from hf_posenc.checkpoints.readers.stated import (
    ReadRotation,
    Stated,
    by_type,
    divided,
    grown,
    interpolated,
    llama3,
    longrope_by_length,
    longrope_default,
    powers,
    proportional,
    unscaled,
    yarn_frequencies,
)

NAME = "SGLang, older vLLM"
BY_LAYER_TYPE = ("gemma3_text",)
"""Models whose reading of parameters by type of layer was looked up."""


def read(stated: Stated) -> ReadRotation:
    """What SGLang computes.

    Raises:
        Unread: it knows no such RoPE type.
    """
    if stated.is_sliding:
        return unscaled(stated)
    return by_type(stated, FORMULAS if stated.layers is None else OF_TRANSFORMERS)


def dynamic(stated: Stated) -> ReadRotation:
    """Static: the base of the longest text at every length."""
    s, dims = stated.factor, stated.rotary_dim
    return ReadRotation(powers(stated.theta * (s * s - (s - 1)) ** (dims / (dims - 2)), dims))


def yarn(stated: Stated) -> ReadRotation:
    """``attn_factor`` multiplies the pair of mscales, or 0.1 ln s + 1; ``attention_factor`` is not read."""
    given = stated.parameters
    mscale, of_all = given.get("mscale"), given.get("mscale_all_dim")
    own = grown(stated.factor)
    if mscale is not None and of_all is not None:
        own = grown(stated.factor, mscale) / grown(stated.factor, of_all)
    return ReadRotation(
        yarn_frequencies(stated, truncate=given.get("truncate", True)), own * given.get("attn_factor", 1.0)
    )


FORMULAS = {
    "default": unscaled,
    "linear": interpolated,
    "dynamic": dynamic,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope_by_length,
    "proportional": proportional,
}
OF_TRANSFORMERS = vllm.FORMULAS | {
    "longrope": lambda stated: ReadRotation(
        divided(stated, "short_factor"), stated.parameters.get("attention_factor") or longrope_default(stated)
    ),
}
"""They are called without a length, for which LongRoPE has its short list; the others are as vLLM reads them."""
