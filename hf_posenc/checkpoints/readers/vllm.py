"""vLLM: read in ``vllm/model_executor/layers/rotary_embedding`` of the wheel of 0.32.0."""

from __future__ import annotations

from functools import partial

from hf_posenc.checkpoints.readers.stated import (
    ReadRotation,
    Stated,
    by_mscales,
    by_type,
    grown,
    unscaled,
    yarn_frequencies,
)

NAME = "vLLM 0.32"


def yarn(stated: Stated) -> ReadRotation:
    """``attention_factor``, else the pair of mscales, else 0.1 ln s + 1; ``truncate`` is read."""
    given = stated.parameters
    amplitude = given.get("attention_factor")
    if amplitude is None:
        both = given.get("mscale") and given.get("mscale_all_dim")  # vLLM takes 0 for not stated
        amplitude = (by_mscales(stated) if both else None) or grown(stated.factor)
    return ReadRotation(yarn_frequencies(stated, truncate=given.get("truncate", True)), amplitude)


FORMULAS = {"dynamic": unscaled, "yarn": yarn}
read = partial(by_type, own=FORMULAS)
"""What vLLM computes. Its ``dynamic`` is static: the base grows by a quotient of lengths, which is 1."""
