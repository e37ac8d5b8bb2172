"""SGLang, and vLLM before its pull request 48351, as read in SGLang's ``srt/layers/rotary_embedding``."""

from __future__ import annotations

from hf_posenc.checkpoints.readers import vllm
from hf_posenc.checkpoints.readers.stated import (
    ExportedConfig,
    ReadRotation,
    Unread,
    by_type,
    mscale_quotient,
    proportional_divided,
    unscaled,
    unscaled_head,
    yarn_frequencies,
    yarn_temperature,
)
from hf_posenc.core.geometry import geometric

NAME = "SGLang, older vLLM"
BY_LAYER_TYPE = ("gemma3_text", "modernbert")
"""Models with parameters by type of layer whose code was read, in ``srt/models``."""


def read(stated: ExportedConfig) -> ReadRotation:
    """The rotation of SGLang; raises as `by_type`."""
    return by_type(stated, FORMULAS) if stated.layers is None else of_layer_type(stated)


def of_layer_type(stated: ExportedConfig) -> ReadRotation:
    """The rotation of layers of one type. Layers with a window are never scaled, nor are any layers of ModernBERT.

    Raises:
        Unread: the layers have a window, and SGLang gives all positions beyond it the rotation of the last one.
    """
    if stated.model_type == "modernbert":
        if stated.sliding:
            raise Unread("it takes every position past the window for its last one in layers with a window")
        return unscaled(stated)
    return unscaled(stated) if stated.sliding else by_type(stated, OF_TRANSFORMERS)


def dynamic(stated: ExportedConfig) -> ReadRotation:
    """Dynamic NTK as a static rotation: the base of the longest text at every length."""
    s, dims = stated.factor, stated.rotary_dim
    return ReadRotation(geometric(stated.theta * (s * s - (s - 1)) ** (dims / (dims - 2)), dims))


def yarn(stated: ExportedConfig) -> ReadRotation:
    """YaRN with ``attn_factor`` times the quotient of mscales, or times 0.1 ln s + 1; not with ``attention_factor``."""
    parameters = stated.parameters
    temperature = mscale_quotient(stated) or yarn_temperature(stated.factor)
    frequencies = yarn_frequencies(stated, truncate=parameters.get("truncate", True))
    return ReadRotation(frequencies, temperature * parameters.get("attn_factor", 1.0))


FORMULAS = {"dynamic": dynamic, "yarn": yarn, "proportional": unscaled_head}
"""For ``proportional`` it reads the share from outside ``rope_parameters``, where transformers 5 writes none."""
OF_TRANSFORMERS = vllm.FORMULAS | {"proportional": proportional_divided}
"""Its Gemma 3 class calls transformers' own functions, which read the same parameters as vLLM 0.33."""
