"""mlx-lm: read in ``mlx_lm/models/rope_utils.py`` and the classes of models of 0.32.2."""

from __future__ import annotations

from hf_posenc.checkpoints.readers.stated import (
    ReadRotation,
    Stated,
    by_type,
    divided,
    grown,
    longrope_default,
    proportional,
    unscaled,
    yarn_frequencies,
)

NAME = "mlx-lm 0.32"
SCALED_MODELS = (
    *("llama", "mistral", "ministral3", "qwen2", "qwen3", "gemma3_text", "granite", "olmo2", "olmo3", "exaone4"),
    *("gpt_oss", "ernie4_5", "seed_oss", "apertus", "minicpm", "deepseek_v3"),
)
"""Models whose class hands the scaling on; the others rotate by ``rope_theta`` alone."""


def read(stated: Stated) -> ReadRotation:
    """What mlx-lm computes.

    Raises:
        Unread: it raises for this RoPE type.
    """
    if stated.model_type not in SCALED_MODELS:
        return unscaled(stated)
    return by_type(stated, FORMULAS)


def yarn(stated: Stated) -> ReadRotation:
    """The quotient of two mscales, 1 and 0 by default; neither ``attention_factor`` nor ``truncate`` is read."""
    mscale, of_all = stated.parameters.get("mscale", 1.0), stated.parameters.get("mscale_all_dim", 0.0)
    return ReadRotation(
        yarn_frequencies(stated, truncate=True), grown(stated.factor, mscale) / grown(stated.factor, of_all)
    )


def longrope(stated: Stated) -> ReadRotation:
    """The long list at every length, with the default temperature: no mscale is handed on."""
    return ReadRotation(divided(stated, "long_factor"), longrope_default(stated))


FORMULAS = {
    "dynamic": unscaled,  # up to max_position_embeddings, which is where it is compared
    "yarn": yarn,
    "longrope": longrope,
    "proportional": lambda stated: ReadRotation(tuple(w / stated.factor for w in proportional(stated).frequencies)),
}
