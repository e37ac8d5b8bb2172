"""vLLM: read in ``vllm/model_executor/layers/rotary_embedding`` of the wheel of 0.32.0."""

from __future__ import annotations

from hf_posenc.checkpoints.readers.stated import (
    ReadRotation,
    Stated,
    by_type,
    grown,
    interpolated,
    llama3,
    longrope_by_length,
    proportional,
    unscaled,
    yarn_frequencies,
)

NAME = "vLLM 0.32"


def read(stated: Stated) -> ReadRotation:
    """What vLLM computes.

    Raises:
        Unread: it knows no such RoPE type.
    """
    return by_type(stated, FORMULAS)


def yarn(stated: Stated) -> ReadRotation:
    """``attention_factor``, else the pair of mscales, else 0.1 ln s + 1; ``truncate`` is read."""
    given = stated.parameters
    mscale, of_all = given.get("mscale"), given.get("mscale_all_dim")
    amplitude = given.get("attention_factor")
    if amplitude is None:
        pair = grown(stated.factor, mscale) / grown(stated.factor, of_all) if mscale and of_all else None
        amplitude = pair or grown(stated.factor)
    return ReadRotation(yarn_frequencies(stated, truncate=given.get("truncate", True)), amplitude)


FORMULAS = {
    "default": unscaled,
    "linear": interpolated,
    "dynamic": unscaled,  # static: its base grows by max_position_embeddings / max_trained_positions, which is 1
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope_by_length,
    "proportional": proportional,
}
