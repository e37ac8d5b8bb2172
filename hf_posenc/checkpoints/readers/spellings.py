"""Write the temperature of a scaling under the names that other engines read, beside ``attention_factor``.

Engines that do not read ``attention_factor`` use 0.1 ln s + 1 as YaRN's temperature, and √(1 + ln s / ln L0) as
LongRoPE's. Their own parameters change this: ``attn_factor`` multiplies the first (SGLang, older vLLM); ``mscale`` is
its coefficient of 0.1 ln s (mlx-lm); ``short_mscale`` and ``long_mscale`` replace the second (vLLM). transformers
ignores them if ``attention_factor`` is present, and warns about ``attn_factor`` when it loads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hf_posenc.checkpoints.readers.stated import yarn_temperature


def with_spellings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE parameters of one type of layer, with the temperature under the names that other engines read.

    Parameters with the default temperature of all engines are unchanged. So are those with ``mscale_all_dim``, because
    engines then scale the softmax as well.
    """
    spelled = SPELLINGS.get(parameters.get("rope_type", ""))
    return dict(parameters) | (spelled(parameters) if spelled else {})


def of_yarn(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """YaRN's temperature under the names that SGLang, older vLLM and mlx-lm read."""
    own, default = parameters.get("attention_factor"), yarn_temperature(parameters["factor"])
    if own is None or math.isclose(own, default, rel_tol=1e-9) or "mscale_all_dim" in parameters:
        return {}
    coefficient = {} if default == 1.0 else {"mscale": (own - 1.0) / (default - 1.0)}
    return {"attn_factor": own / default} | coefficient


def of_longrope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """LongRoPE's temperature under the names that vLLM and SGLang read."""
    own = parameters.get("attention_factor")
    return {} if own is None else {"short_mscale": own, "long_mscale": own}


SPELLINGS = {"yarn": of_yarn, "longrope": of_longrope}
