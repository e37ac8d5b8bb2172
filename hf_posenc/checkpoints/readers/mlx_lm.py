"""mlx-lm: read in ``mlx_lm/models/rope_utils.py`` and the classes of models of 0.32.2."""

from __future__ import annotations

from dataclasses import replace

from hf_posenc.checkpoints.readers.stated import (
    ReadRotation,
    Stated,
    Unread,
    by_type,
    divided,
    grown,
    longrope_default,
    proportional_divided,
    unscaled,
    with_base,
    yarn_frequencies,
)

NAME = "mlx-lm 0.32"
SCALED_MODELS = (
    *("llama", "mistral", "ministral3", "qwen2", "qwen3", "gemma3_text", "granite", "olmo2", "olmo3", "exaone4"),
    *("gpt_oss", "ernie4_5", "seed_oss", "apertus", "minicpm", "deepseek_v3"),
)
"""Models whose class hands the scaling on; the others rotate by ``rope_theta`` alone."""
DEMAND_TYPE = ("phi3", "qwen2_moe", "hunyuan_v1_dense")
"""Models whose class raises for a scaling without a key ``type``, which transformers 5 does not write."""
WHOLE_HEAD = ("glm",)
"""Models whose class rotates all channels of a head, whatever share is stated."""
BY_LAYER_TYPE = ("gemma3_text", "gemma3n_text", "olmo3", "modernbert")
"""Models with parameters by type of layer that were read: the first three by the keys before transformers 5 alone."""
GEMMA_3_BASES = {"full_attention": 1e6, "sliding_attention": 1e4}
"""What its class of Gemma 3 takes where no base is stated; those of the others demand one."""


def read(stated: Stated) -> ReadRotation:
    """What mlx-lm computes.

    Raises:
        Unread: it raises for this RoPE type, or for this model.
    """
    if stated.layers is not None:
        return of_layer_type(stated)
    if stated.model_type in DEMAND_TYPE and stated.rope_type != "default":
        raise Unread("its class of this model demands a key 'type' of a scaling")
    if stated.model_type in WHOLE_HEAD:
        stated = replace(stated, parameters={**stated.parameters, "partial_rotary_factor": 1.0})
    if stated.model_type not in SCALED_MODELS:
        return unscaled(stated)
    return by_type(stated, FORMULAS)


def of_layer_type(stated: Stated) -> ReadRotation:
    """Layers with a window are never scaled, and no layers of Gemma 3n are.

    Raises:
        Unread: it has no class for the model, or finds no base.
    """
    if stated.model_type == "modernbert":
        raise Unread("it has no class for this model")
    if not stated.old_keys and stated.model_type == "gemma3_text":
        return with_base(stated, GEMMA_3_BASES[stated.layers or ""])
    if not stated.old_keys:
        raise Unread("it reads the keys before transformers 5, which cannot say how these layers rotate")
    if stated.sliding or stated.model_type == "gemma3n_text":
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
    "proportional": proportional_divided,
}
