"""The temperature of a scaling in the words of every engine, beside transformers' ``attention_factor``.

Engines that do not read ``attention_factor`` take YaRN's temperature for 0.1 ln s + 1, and LongRoPE's for
√(1 + ln s / ln L0). They are told by what they do read: ``attn_factor`` multiplies the first (SGLang, older vLLM),
``mscale`` is its coefficient of 0.1 ln s (mlx-lm), ``short_mscale`` and ``long_mscale`` replace the second (vLLM).
transformers reads none of them where ``attention_factor`` stands, and names ``attn_factor`` in a warning when it loads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hf_posenc.checkpoints.readers.stated import grown


def with_spellings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE parameters of one type of layer, with what other engines read of their temperature.

    Parameters whose temperature is what every engine takes by itself are returned as they are, and so are those of
    models with ``mscale_all_dim``, where engines scale the softmax as well.
    """
    return dict(parameters) | SPELLINGS.get(parameters.get("rope_type", ""), lambda _: {})(parameters)


def of_yarn(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What SGLang, older vLLM and mlx-lm read of YaRN's temperature."""
    own, usual = parameters.get("attention_factor"), grown(parameters["factor"])
    if own is None or math.isclose(own, usual, rel_tol=1e-9) or "mscale_all_dim" in parameters:
        return {}
    coefficient = {} if usual == 1.0 else {"mscale": (own - 1.0) / (usual - 1.0)}
    return {"attn_factor": own / usual} | coefficient


def of_longrope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What vLLM and SGLang read of LongRoPE's temperature."""
    own = parameters.get("attention_factor")
    return {} if own is None else {"short_mscale": own, "long_mscale": own}


SPELLINGS = {"yarn": of_yarn, "longrope": of_longrope}
