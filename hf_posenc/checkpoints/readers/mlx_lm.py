"""mlx-lm, as read in ``mlx_lm/models/rope_utils.py`` and the model classes of version 0.32.2."""

from __future__ import annotations

from dataclasses import replace

from hf_posenc.checkpoints.readers.stated import (
    ExportedConfig,
    ReadRotation,
    Unread,
    by_type,
    longrope_default,
    longrope_frequencies,
    proportional_divided,
    unscaled,
    yarn_frequencies,
    yarn_temperature,
)
from hf_posenc.core.geometry import geometric

NAME = "mlx-lm 0.32"
SCALED_MODELS = (
    *("llama", "mistral", "ministral3", "qwen2", "qwen3", "gemma3_text", "granite", "olmo2", "olmo3", "exaone4"),
    *("gpt_oss", "ernie4_5", "seed_oss", "apertus", "minicpm", "deepseek_v3"),
)
"""Models whose class applies the scaling. The others rotate by ``rope_theta`` alone."""
DEMAND_TYPE = ("phi3", "qwen2_moe", "hunyuan_v1_dense")
"""Models whose class raises for a scaling without a key ``type``, which transformers 5 does not write."""
WHOLE_HEAD = ("glm",)
"""Models whose class rotates all channels of a head, whatever share is stated."""
BY_LAYER_TYPE = ("gemma3_text", "gemma3n_text", "olmo3", "modernbert")
"""Models with parameters by type of layer whose code was read. The first three read only the old keys."""
GEMMA_3_BASES = {"full_attention": 1e6, "sliding_attention": 1e4}
"""Default bases of its Gemma 3 class. The classes of the other models have none."""


def read(stated: ExportedConfig) -> ReadRotation:
    """The rotation of mlx-lm.

    Raises:
        Unread: mlx-lm raises for this RoPE type, or for this model.
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


def of_layer_type(stated: ExportedConfig) -> ReadRotation:
    """The rotation of layers of one type. Layers with a window are never scaled, nor are any layers of Gemma 3n.

    Raises:
        Unread: mlx-lm has no class for the model, or finds no base.
    """
    if stated.model_type == "modernbert":
        raise Unread("it has no class for this model")
    if not stated.old_keys and stated.model_type == "gemma3_text":
        return ReadRotation(geometric(GEMMA_3_BASES[stated.layers or ""], stated.rotary_dim))
    if not stated.old_keys:
        raise Unread("it reads the keys before transformers 5, which cannot say how these layers rotate")
    if stated.sliding or stated.model_type == "gemma3n_text":
        return unscaled(stated)
    return by_type(stated, FORMULAS)


def yarn(stated: ExportedConfig) -> ReadRotation:
    """YaRN with the quotient of mscales, by default 1 and 0. ``attention_factor`` and ``truncate`` are not read."""
    mscale, mscale_all = stated.parameters.get("mscale", 1.0), stated.parameters.get("mscale_all_dim", 0.0)
    temperature = yarn_temperature(stated.factor, mscale) / yarn_temperature(stated.factor, mscale_all)
    return ReadRotation(yarn_frequencies(stated, truncate=True), temperature)


def longrope(stated: ExportedConfig) -> ReadRotation:
    """LongRoPE with the long list at every length, and the default temperature, because no mscale is read."""
    return ReadRotation(longrope_frequencies(stated, "long_factor"), longrope_default(stated))


FORMULAS = {
    "dynamic": unscaled,  # up to max_position_embeddings, the length at which it is compared
    "yarn": yarn,
    "longrope": longrope,
    "proportional": proportional_divided,
}
