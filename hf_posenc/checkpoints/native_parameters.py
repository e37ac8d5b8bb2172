"""Express the schemes of a patched model as ``rope_parameters`` of transformers.

A configuration has one set of parameters for all layers, or one for each type of layer (Gemma 3, OLMo 3, ModernBERT).
In the latter case, a scheme that only layers of one type have is exported for that type. Layers that the model does not
rotate (SmolLM 3, Llama 4, Cohere 2) stay unrotated, and are ignored here.

The temperature of a scaling is written as ``attention_factor``, and under the names that other engines read. Engines
that do not read ``attention_factor`` use 0.1 ln s + 1 as YaRN's temperature, and √(1 + ln s / ln L0) as LongRoPE's.
Their own parameters change this: ``attn_factor`` multiplies the first (SGLang, older vLLM); ``mscale`` is its
coefficient of 0.1 ln s (mlx-lm); ``short_mscale`` and ``long_mscale`` replace the second (vLLM). transformers ignores
them if ``attention_factor`` is present, and warns about ``attn_factor`` when it loads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import transformers
from transformers import ROPE_INIT_FUNCTIONS

from hf_posenc.checkpoints.readers.stated import yarn_temperature
from hf_posenc.checkpoints.static_rotation import HOOKS, as_longrope
from hf_posenc.errors import NotExpressible
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patches.shared.rope_parameters import rotations
from hf_posenc.patching.state import base_model_of, describe
from hf_posenc.schemes.base import Scheme, implements
from hf_posenc.schemes.host_rotation import HostRotation
from hf_posenc.schemes.recipes.recipe import Recipe

LENGTH_DEPENDENT = ("regions", "row_rotation")
QUERY_SCALE = ("llama_4_scaling_beta", "original_max_position_embeddings")
"""Parameters by which some Mistrals scale late queries. No scheme changes this. Scalings use the length as well."""
BESIDE_SCALING = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
INSTEAD = "Use the checkpoint that save_pretrained writes: hf_posenc.from_pretrained and --model read it."


def rope_parameters_of(model: Any) -> tuple[dict[str, Any], bool]:
    """The rotation of a patched model as ``rope_parameters``, flat or by type of layer.

    Returns:
        The parameters, and whether they are valid up to the trained length only.

    Raises:
        NotPatched: the model carries no scheme.
        NotExpressible: transformers has no such RoPE type, a scheme does more than rotate, or layers that share their
            parameters have different schemes.
    """
    base, name = base_model_of(model)[0], describe(model).scheme
    schemes = acting_schemes(base)
    types = types_of_layers(base.config, len(schemes))
    by_type: dict[str | None, dict[str, Any]] = {}
    short = False
    for kind, own in (rotations(base.config) or {None: {}}).items():
        of_type = [scheme for scheme, layer_type in zip(schemes, types, strict=True) if layer_type == kind]
        rotating = [scheme for scheme in of_type if not is_unrotated(scheme)]
        if not rotating or all(isinstance(scheme, HostRotation) for scheme in rotating):
            by_type[kind] = dict(own)
            continue
        parameters, within_trained = parameters_of_all(rotating, name)
        by_type[kind] = kept_parameters(own) | parameters | respelled_temperature(parameters)
        check_query_scale(own, by_type[kind], name)
        short |= within_trained
    if None in by_type:
        return by_type[None], short
    if short:
        raise NotExpressible(
            f"Beyond the trained length, transformers computes scheme {name!r} differently, which an export does not "
            f"compare if types of layers rotate differently. {INSTEAD}"
        )
    return {str(kind): own for kind, own in by_type.items()}, short


def kept_parameters(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the model's own RoPE parameters that an export keeps, because they are not part of a scaling.

    These are the share of rotated channels, the assignment of pairs to axes, and the scale of late queries.
    """
    kept = BESIDE_SCALING + (QUERY_SCALE if QUERY_SCALE[0] in stated else ())
    return {name: stated[name] for name in kept if name in stated}


def check_query_scale(stated: Mapping[str, Any], exported: Mapping[str, Any], name: str) -> None:
    """Refuse an export that changes the length from which the model itself scales its late queries."""
    beta, length = QUERY_SCALE
    if beta in stated and exported.get(length) != stated.get(length):
        raise NotExpressible(
            f"This model scales queries after its first {stated.get(length)} tokens ({beta}), and scheme {name!r} "
            f"counts from {exported.get(length)}; a configuration has one number for both. {INSTEAD}"
        )


def respelled_temperature(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The temperature in the RoPE parameters of one type of layer, under the names that other engines read.

    Empty for the default temperature of all engines; and with ``mscale_all_dim``, because engines then scale the
    softmax as well.
    """
    kind, own = parameters["rope_type"], parameters.get("attention_factor")
    if own is not None and kind == "longrope":
        return {"short_mscale": own, "long_mscale": own}
    if own is None or kind != "yarn" or "mscale_all_dim" in parameters:
        return {}
    default = yarn_temperature(parameters["factor"])
    if math.isclose(own, default, rel_tol=1e-9):
        return {}
    coefficient = {} if default == 1.0 else {"mscale": (own - 1.0) / (default - 1.0)}
    return {"attn_factor": own / default} | coefficient


def types_of_layers(config: Any, count: int) -> tuple[str | None, ...]:
    """The type of each layer, for a configuration with RoPE parameters by type of layer; else None for each layer."""
    if None in (rotations(config) or {None: {}}):
        return (None,) * count
    types = getattr(config, "layer_types", None) or ()
    if len(types) != count:
        raise NotExpressible(
            f"This {config.model_type} has RoPE parameters by type of layer. It has {count} layers with attention, but "
            f"its configuration states the types of {len(types)}. {INSTEAD}"
        )
    return tuple(types)


def is_unrotated(scheme: Scheme) -> bool:
    """Whether a layer keeps the model's own positions and has no rotation, so that RoPE parameters do not apply."""
    return isinstance(scheme, HostRotation) and scheme.geometry.rotary is None


def parameters_of_all(schemes: list[Scheme], name: str) -> tuple[dict[str, Any], bool]:
    """The parameters of layers that share them, and whether they are valid up to the trained length only."""
    first, *others = dict.fromkeys(schemes)
    parameters = parameters_of(first, name)
    if any(type(other) is not type(first) or parameters_of(other, name) != parameters for other in others):
        raise NotExpressible(
            f"Some layers lack scheme {name!r}, and layers that share their RoPE parameters are exported "
            f'with one. Patch them alike, as with layers="all". {INSTEAD}'
        )
    return parameters


def parameters_of(scheme: Scheme, name: str) -> tuple[dict[str, Any], bool]:
    """The parameters of a scheme, and whether they are valid up to the trained length only."""
    parameters = scheme.native() or as_longrope(scheme)
    short = parameters is None
    if short:
        parameters = scheme.native_within_trained()
    beyond_rotation = [hook for hook in HOOKS if implements(scheme, hook) and not (short and hook in LENGTH_DEPENDENT)]
    if parameters is None or beyond_rotation:
        raise NotExpressible(f"Scheme {name!r} has no counterpart among transformers' RoPE types. {INSTEAD}")
    if parameters["rope_type"] not in {"default", *ROPE_INIT_FUNCTIONS}:
        raise NotExpressible(
            f"transformers {transformers.__version__} does not know the RoPE type {parameters['rope_type']!r} yet. "
            "Update it, or save the model with model.save_pretrained."
        )
    return parameters, short


def acting_schemes(base: Any) -> tuple[Scheme, ...]:
    """The scheme that acts outside training in each layer of a patched base model.

    Raises:
        NotExpressible: parameters of a scheme are offloaded, so their values are not available.
    """
    schemes = tuple(acting_part(module.scheme) for module in base.__dict__[ATTENTIONS])
    offloaded = next((scheme for scheme in schemes if any(weight.is_meta for weight in scheme.parameters())), None)
    if offloaded is not None:
        raise NotExpressible(
            f"The parameters of scheme {offloaded.shown_name!r} are offloaded, and an export needs their values. Load "
            "the model without a device_map, and export that."
        )
    return schemes


def acting_part(scheme: Scheme) -> Scheme:
    """The part of a composition that acts outside training, without recipes such as PoSE. If not one, the whole."""
    acting = [part for part in scheme.schemes if not isinstance(part, Recipe) or part.needs_whole_text]
    return acting[0] if len(acting) == 1 else scheme
