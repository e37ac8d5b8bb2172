"""vLLM, as read in ``vllm/model_executor/layers/rotary_embedding`` of 0.33.0, the same files as in 0.32.0."""

from __future__ import annotations

from hf_posenc.checkpoints.readers.stated import (
    ExportedConfig,
    ReadRotation,
    by_type,
    mscale_quotient,
    unscaled,
    yarn_frequencies,
    yarn_temperature,
)

NAME = "vLLM 0.33"


def yarn(stated: ExportedConfig) -> ReadRotation:
    """YaRN with ``attention_factor``, or else the quotient of mscales, or else 0.1 ln s + 1; with ``truncate``."""
    parameters = stated.parameters
    temperature = parameters.get("attention_factor")
    if temperature is None:
        both = parameters.get("mscale") and parameters.get("mscale_all_dim")  # vLLM treats 0 as missing
        temperature = (mscale_quotient(stated) if both else None) or yarn_temperature(stated.factor)
    return ReadRotation(yarn_frequencies(stated, truncate=parameters.get("truncate", True)), temperature)


FORMULAS = {"dynamic": unscaled, "yarn": yarn}
"""Its ``dynamic`` is unscaled, because the base grows by a quotient of lengths that is 1."""


def read(stated: ExportedConfig) -> ReadRotation:
    """The rotation of vLLM; raises as `by_type`."""
    return by_type(stated, FORMULAS)
