"""SGLang, and vLLM before its pull request 48351: read in ``srt/layers/rotary_embedding`` of SGLang's repository."""

from __future__ import annotations

from functools import partial

from hf_posenc.checkpoints.readers.stated import (
    ReadRotation,
    Stated,
    by_mscales,
    by_type,
    grown,
    powers,
    yarn_frequencies,
)

NAME = "SGLang, older vLLM"


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


read = partial(by_type, own={"dynamic": dynamic, "yarn": yarn})
"""What SGLang computes."""
