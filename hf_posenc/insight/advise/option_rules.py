"""Options by the rules of the papers, where a scheme's own defaults are not the rule already."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hf_posenc.core.geometry import Geometry
from hf_posenc.schemes.bias.slopes import code_slopes


def well_trained_group(trained: int, target: int, window: int) -> int:
    """The smallest G that stays within the distances training saw often: W + (target − W) / G < ⅔ L0.

    Long distances are rare in training; the authors' rule of thumb is (½ … ⅔) L0.
    Jin et al. 2024, arXiv:2401.01325; github.com/datamllab/LongLM, "Empirical Rule".
    """
    return max(1, 3 * (target - window) // (2 * trained - 3 * window) + 1)


def self_extend(geometry: Geometry) -> dict[str, Any]:
    """A window of a quarter of the trained length: Llama-2's is 1024 of 4096, of the 512 to 1536 its authors name."""
    trained, target = geometry.trained_length, geometry.target_length
    window = max(1, trained // 4)
    return {"group": well_trained_group(trained, target, window), "window": window} if window < trained else {}


def abf(geometry: Geometry) -> dict[str, Any]:
    """A base of at least 0.0424 L^1.628, in two digits and rounded up, and never less than Llama 2 Long's.

    Xiong et al. 2023, arXiv:2309.16039; Xu et al. 2024, "Base of RoPE Bounds Context Length", arXiv:2405.14591.
    """
    bound = 0.0424 * geometry.target_length**1.628
    unit = 10.0 ** (math.floor(math.log10(bound)) - 1)
    return {"base": max(500_000.0, math.ceil(bound / unit) * unit)}


def yarn(geometry: Geometry) -> dict[str, Any]:
    """The published bounds for Llama models (arXiv:2309.00071, section 3.2)."""
    return {"beta_fast": 32.0, "beta_slow": 1.0}


def sinks(geometry: Geometry) -> dict[str, Any]:
    """Four sinks are enough, more bring little (arXiv:2309.17453, section 3)."""
    return {"sinks": min(4, geometry.trained_length - 1)}


def alibi(geometry: Geometry) -> dict[str, Any]:
    """The model's own slopes over the factor (arXiv:2310.13017), where it has some.

    In an encoder half of the heads attend to each side: |i − j| alone does not distinguish left from right.
    """
    if geometry.slopes is not None:
        own = {} if list(geometry.slopes) == code_slopes(geometry.heads) else {"slopes": list(geometry.slopes)}
        return {**own, "interpolate": geometry.factor}
    return {} if geometry.causal else {"bidirectional": "asymmetric"}


def learned_interp(geometry: Geometry) -> dict[str, Any]:
    """Repeat the table, as Longformer did (arXiv:2004.05150, section 5): neighbours stay as far apart as they were."""
    return {"mode": "tile"}


RULES: dict[str, Callable[[Geometry], dict[str, Any]]] = {
    "abf": abf,
    "alibi": alibi,
    "learned_interp": learned_interp,
    "self_extend": self_extend,
    "sinks": sinks,
    "yarn": yarn,
}
