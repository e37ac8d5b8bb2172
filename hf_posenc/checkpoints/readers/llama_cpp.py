"""llama.cpp, through its converter: read in the sources that llama-cpp-python 0.3.36 carries.

The runtime reads YaRN's temperature of its own from ``rope.scaling.attn_factor``, which the converter does not write;
``rope.scaling.yarn_attn_factor``, which it does, is computed anew (``src/llama-context.cpp``).
"""

from __future__ import annotations

from hf_posenc.checkpoints.readers.stated import (
    ReadRotation,
    Stated,
    grown,
    interpolated,
    llama3,
    longrope_by_length,
    longrope_default,
    unscaled,
    unscaled_head,
    yarn_frequencies,
)

NAME = "llama.cpp's converter"
WITH_FREQUENCIES = ("llama", "mistral", "mixtral", "apertus", "exaone4")
"""Models for which the converter writes Llama 3's frequencies."""
WITH_LISTS = ("phi3",)
"""Models for which it writes LongRoPE's lists, with the default temperature."""
BY_LAYER_TYPE = ("gemma3_text", "gemma3n_text", "olmo3", "modernbert")
"""Models with parameters by type of layer that were read: of layers with a window it writes the base alone."""
UNSCALED = ("modernbert",)
"""Models of which it writes that nothing is scaled."""


def read(stated: Stated) -> ReadRotation:
    """What llama.cpp computes from a converted checkpoint: unscaled RoPE, for a RoPE type it does not know."""
    if stated.sliding or stated.model_type in UNSCALED:
        return unscaled(stated)
    if stated.rope_type == "llama3" and stated.model_type not in WITH_FREQUENCIES:
        return unscaled(stated)
    if stated.rope_type == "longrope" and stated.model_type in WITH_LISTS:
        return ReadRotation(longrope_by_length(stated).frequencies, longrope_default(stated))
    return FORMULAS.get(stated.rope_type, unscaled)(stated)


def yarn(stated: Stated) -> ReadRotation:
    """Always 0.1 ln s + 1, and whole pairs at the ends of the ramp."""
    return ReadRotation(yarn_frequencies(stated, truncate=True), grown(stated.factor))


FORMULAS = {"linear": interpolated, "llama3": llama3, "yarn": yarn, "proportional": unscaled_head}
