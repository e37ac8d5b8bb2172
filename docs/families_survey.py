"""Survey all model families of the installed transformers: can they be patched, and which schemes do they use?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import isclose
from typing import Any

from hf_posenc.core.geometry import Geometry, LayerKind, geometric
from hf_posenc.insight.families import CLASSES, Kind, default_model, family, geometries


def survey() -> Iterator[dict[str, Any]]:
    """Yield a row for each family with a language-model head, by kind and in alphabetical order."""
    for kind, classes in CLASSES.items():
        for model_type in sorted(classes):
            yield row(model_type, kind)


def row(model_type: str, kind: Kind) -> dict[str, Any]:
    """Row of one family, with the schemes that match its own positions; none if it cannot be patched."""
    surveyed, own = family(model_type, kind), ""
    if surveyed.schemes:
        model = default_model(model_type, kind)
        scaled = temperature(model.config)
        own = ", ".join(dict.fromkeys(n for one in geometries(model).values() for n in native_schemes(one, scaled)))
    return asdict(surveyed) | {"native": own}


def temperature(config: Any) -> str:
    """Layers whose queries the model scales as `llama4_temp` does: ``"all"``, ``"unrotated"``, or empty for none."""
    text = config.get_text_config()
    if "llama_4_scaling_beta" in str(getattr(text, "rope_parameters", "")):
        return "all"
    return "unrotated" if getattr(text, "attn_temperature_tuning", False) else ""


def native_schemes(geometry: Geometry, scaled: str = "") -> list[str]:
    """Names of the schemes that match a model's own positions: those of its table and of each kind of layer.

    ``scaled`` says which layers have a `temperature` too.
    """
    kinds = geometry.kinds or (LayerKind(geometry.heads, geometry.kv_heads, geometry.head_dim, geometry.rotary),)
    found = [] if geometry.table is None else ["learned"]
    found += [] if geometry.slopes is None else ["alibi"]
    found += ["t5"] if geometry.biased else []
    rotated = any(kind.rotary for kind in kinds)
    for kind in kinds:
        name = rotation_scheme(kind) if kind.rotary else "none" if rotated or not found else ""
        temperate = scaled == "all" or (scaled == "unrotated" and not kind.rotary)
        parts = name, "window" if kind.window else "", "llama4_temp" if temperate else ""
        found.append("+".join(filter(None, parts)))
    return [name for name in dict.fromkeys(found) if name]


def rotation_scheme(kind: LayerKind) -> str:
    """Name of the scheme that matches a layer's rotation; ``host`` if its frequencies are scaled."""
    own: Any = kind.rotary
    frequencies, unscaled = own.rotation.frequencies, geometric(own.base, own.rotation.dims)
    if own.axes is not None:
        return "mrope"
    if not all(w == 0 or isclose(w, plain, rel_tol=1e-4) for w, plain in zip(frequencies, unscaled, strict=True)):
        return "host"
    if 0 in frequencies:
        return "proportional"
    return "rope" if own.rotation.dims == kind.head_dim else "partial"
