"""mlx-lm: read in ``mlx_lm/models/rope_utils.py`` and the classes of models of 0.32.2.

Where types of layers differ, it reads the keys from before transformers 5, and scales no layer that slides.
"""

from __future__ import annotations

from dataclasses import replace

from hf_posenc.checkpoints.readers.stated import (
    ReadRotation,
    Stated,
    Unread,
    by_type,
    divided,
    grown,
    interpolated,
    llama3,
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
BY_LAYER_TYPE = ("gemma3_text", "gemma3n_text", "olmo3", "modernbert")
"""Models whose reading of parameters by type of layer was looked up."""
BASES_OF_GEMMA3 = {"sliding_attention": 1e4, "full_attention": 1e6}
"""Its bases of Gemma 3 where a file has none of the old keys."""


def read(stated: Stated) -> ReadRotation:
    """What mlx-lm computes.

    Raises:
        Unread: it raises for this RoPE type, has no class for this model, or needs keys that cannot say this.
    """
    if stated.layers is not None:
        return of_layers(stated, stated.layers)
    if stated.model_type not in SCALED_MODELS:
        return unscaled(stated)
    return by_type(stated, FORMULAS)


def of_layers(stated: Stated, layers: str) -> ReadRotation:
    """What it computes in the layers of one type.

    Raises:
        Unread: it has no class for this model, or needs keys that cannot say this.
    """
    if stated.model_type == "modernbert":
        raise Unread("it has no class for ModernBERT")
    if not stated.in_old_form and stated.model_type == "gemma3_text":
        return unscaled(replace(stated, parameters={"rope_theta": BASES_OF_GEMMA3[layers]}))
    if not stated.in_old_form:
        raise Unread("it needs rope_theta outside of rope_parameters, where these cannot be said")
    if stated.is_sliding or stated.model_type not in SCALED_MODELS:
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
    "default": unscaled,
    "linear": interpolated,
    "dynamic": unscaled,  # up to max_position_embeddings, which is where it is compared
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
    "proportional": lambda stated: ReadRotation(tuple(w / stated.factor for w in proportional(stated).frequencies)),
}
