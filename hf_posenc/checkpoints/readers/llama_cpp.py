"""llama.cpp with its converter, as read in the sources inside llama-cpp-python 0.3.36.

The runtime reads YaRN's temperature from ``rope.scaling.attn_factor``, which the converter does not write. The
converter writes ``rope.scaling.yarn_attn_factor``, which the runtime recomputes (``src/llama-context.cpp``).
"""

from __future__ import annotations

from hf_posenc.checkpoints.readers.stated import (
    ExportedConfig,
    ReadRotation,
    linear,
    llama3,
    longrope_by_length,
    longrope_default,
    unscaled,
    unscaled_head,
    yarn_frequencies,
    yarn_temperature,
)

NAME = "llama.cpp's converter"
WITH_FREQUENCIES = ("llama", "mistral", "mixtral", "apertus", "exaone4")
"""Models for which the converter writes Llama 3's frequencies."""
WITH_LISTS = ("phi3",)
"""Models for which it writes LongRoPE's lists, with the default temperature."""
BY_LAYER_TYPE = ("gemma3_text", "gemma3n_text", "olmo3", "modernbert")
"""Models with parameters by type of layer whose code was read. For layers with a window it writes only the base."""
UNSCALED = ("modernbert",)
"""Models for which it writes no scaling."""


def read(stated: ExportedConfig) -> ReadRotation:
    """The rotation of llama.cpp for a converted checkpoint. RoPE types that it does not know become unscaled RoPE."""
    if stated.sliding or stated.model_type in UNSCALED:
        return unscaled(stated)
    if stated.rope_type == "llama3" and stated.model_type not in WITH_FREQUENCIES:
        return unscaled(stated)
    if stated.rope_type == "longrope" and stated.model_type in WITH_LISTS:
        return ReadRotation(longrope_by_length(stated).frequencies, longrope_default(stated))
    return FORMULAS.get(stated.rope_type, unscaled)(stated)


def yarn(stated: ExportedConfig) -> ReadRotation:
    """YaRN with temperature 0.1 ln s + 1, whatever is stated, and a ramp that ends at whole pairs."""
    return ReadRotation(yarn_frequencies(stated, truncate=True), yarn_temperature(stated.factor))


FORMULAS = {"linear": linear, "llama3": llama3, "yarn": yarn, "proportional": unscaled_head}
