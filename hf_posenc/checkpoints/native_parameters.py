"""The ``rope_parameters`` under which transformers rotates as the schemes of a patched model do.

A configuration has one set for all layers, or one for each type of layer (Gemma 3, OLMo 3, ModernBERT): a scheme that
is patched into the layers of one type is then exported for that type. Layers that the model does not rotate (SmolLM 3,
Llama 4, Cohere 2) stay so, and are not asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import transformers
from transformers import ROPE_INIT_FUNCTIONS

from hf_posenc.checkpoints.readers.spellings import with_spellings
from hf_posenc.checkpoints.static_rotation import HOOKS, as_longrope
from hf_posenc.errors import NotExpressible
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.patches.shared.rope_parameters import by_layer_type
from hf_posenc.patching.state import base_model_of, describe
from hf_posenc.schemes.base import Scheme, implements
from hf_posenc.schemes.host_rotation import HostRotation
from hf_posenc.schemes.recipes.recipe import Recipe

LENGTH_DEPENDENT = ("regions", "row_rotation")
QUERY_SCALE = ("llama_4_scaling_beta", "original_max_position_embeddings")
"""What some Mistrals scale late queries by, which no scheme takes away; the length belongs to scalings, too."""
BESIDE_SCALING = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
INSTEAD = "Use the checkpoint that save_pretrained writes: hf_posenc.from_pretrained and --model read it."


@dataclass(frozen=True)
class NativeParameters:
    """A model's rotation in the words of transformers.

    Attributes:
        parameters: ``rope_parameters``, flat or by type of layer.
        short: whether logits are equal up to the trained length only.
        schemes: what acts in each layer outside training.
        types: of layers, by which ``parameters`` are stated; None for each where they are flat.
    """

    parameters: dict[str, Any]
    short: bool
    schemes: tuple[Scheme, ...]
    types: tuple[str | None, ...]


def rope_parameters_of(model: Any) -> NativeParameters:
    """The rotation of a patched model in the words of transformers.

    Raises:
        NotPatched: the model carries no scheme.
        NotExpressible: transformers has no such RoPE type, a scheme does more than rotate, or layers differ for which
            a configuration has one set of parameters.
    """
    base, name = base_model_of(model)[0], describe(model).scheme
    schemes = acting_schemes(base)
    stated = by_layer_type(getattr(base.config, "rope_parameters", None)) or {None: {}}
    types = (None,) * len(schemes) if None in stated else tuple(types_of_layers(base.config, len(schemes)))
    found: dict[str | None, dict[str, Any]] = {}
    short = False
    for kind, own in stated.items():
        asked = [scheme for scheme, of in zip(schemes, types, strict=True) if of == kind and not is_unrotated(scheme)]
        if not asked or all(isinstance(scheme, HostRotation) for scheme in asked):
            found[kind] = dict(own)
            continue
        parameters, within_trained = parameters_of_all(asked, name)
        found[kind] = kept_parameters(own) | with_spellings(parameters)
        check_query_scale(own, found[kind], name)
        short |= within_trained
    if None in found:
        return NativeParameters(found[None], short, schemes, types)
    if short:
        raise NotExpressible(
            f"transformers follows the length in another way than scheme {name!r}, which is not "
            f"compared where types of layers rotate differently. {INSTEAD}"
        )
    return NativeParameters({str(kind): own for kind, own in found.items()}, short, schemes, types)


def kept_parameters(stated: Mapping[str, Any]) -> dict[str, Any]:
    """What RoPE parameters say beside a scaling.

    The share of rotated channels, which of the model's heads only it knows; how pairs are shared by axes; and what
    queries are scaled by.
    """
    kept = BESIDE_SCALING + (QUERY_SCALE if QUERY_SCALE[0] in stated else ())
    return {name: stated[name] for name in kept if name in stated}


def check_query_scale(stated: Mapping[str, Any], found: Mapping[str, Any], name: str) -> None:
    """Refuse to write another length than that from which the model itself scales its late queries."""
    beta, length = QUERY_SCALE
    if beta in stated and found.get(length) != stated.get(length):
        raise NotExpressible(
            f"This model scales queries after its first {stated.get(length)} tokens ({beta}), and scheme {name!r} "
            f"counts from {found.get(length)}; a configuration has one number for both. {INSTEAD}"
        )


def types_of_layers(config: Any, count: int) -> list[str]:
    """The type of each layer, in a configuration that has RoPE parameters for each."""
    types = getattr(config, "layer_types", None) or ()
    if len(types) != count:
        raise NotExpressible(
            f"This {config.model_type} has RoPE parameters for each type of layer, and {count} layers with attention "
            f"of {len(types)} whose type is stated. {INSTEAD}"
        )
    return list(types)


def is_unrotated(scheme: Scheme) -> bool:
    """Whether a layer is left as it is, without a rotation, which no parameters of its model change."""
    return isinstance(scheme, HostRotation) and scheme.geometry.rotary is None


def parameters_of_all(schemes: list[Scheme], name: str) -> tuple[dict[str, Any], bool]:
    """The parameters of layers that share them, and whether they are equal up to the trained length only."""
    first, *others = dict.fromkeys(sorted(schemes, key=lambda scheme: not any(stated_natively(scheme))))
    parameters = parameters_of(first, name)
    if any(type(other) is not type(first) or parameters_of(other, name) != parameters for other in others):
        raise NotExpressible(
            f"Some layers lack scheme {name!r}, and layers that share their RoPE parameters are exported "
            f'with one. Patch them alike, as with layers="all". {INSTEAD}'
        )
    return parameters


def parameters_of(scheme: Scheme, name: str) -> tuple[dict[str, Any], bool]:
    """The parameters of a scheme, and whether they are equal up to the trained length only."""
    everywhere, within_trained = stated_natively(scheme)
    beyond_rotation = [
        hook for hook in HOOKS if implements(scheme, hook) and not (within_trained and hook in LENGTH_DEPENDENT)
    ]
    parameters = everywhere or within_trained
    if parameters is None or beyond_rotation:
        raise NotExpressible(f"Scheme {name!r} has no counterpart among transformers' RoPE types. {INSTEAD}")
    if parameters["rope_type"] not in {"default", *ROPE_INIT_FUNCTIONS}:
        raise NotExpressible(
            f"transformers {transformers.__version__} does not know the RoPE type {parameters['rope_type']!r} yet. "
            "Update it, or save the model with model.save_pretrained."
        )
    return parameters, everywhere is None


def stated_natively(scheme: Scheme) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The RoPE parameters of a scheme: of all lengths, and else up to the trained length."""
    everywhere = (scheme.native() if len(scheme.schemes) == 1 else None) or as_longrope(scheme)
    return everywhere, scheme.native_within_trained() if len(scheme.schemes) == 1 and everywhere is None else None


def acting_schemes(base: Any) -> tuple[Scheme, ...]:
    """What acts outside training in each layer of a patched base model.

    Raises:
        NotExpressible: its parameters are offloaded, and there are no values to compute from.
    """
    found = tuple(acting_part(module.scheme) for module in base.__dict__[ATTENTIONS])
    away = next((scheme for scheme in found if any(weight.is_meta for weight in scheme.parameters())), None)
    if away is not None:
        raise NotExpressible(
            f"The parameters of scheme {away.shown_name!r} are offloaded, and an export computes from them. Load the "
            "model without a device_map, and export that."
        )
    return found


def acting_part(scheme: Scheme) -> Scheme:
    """The one part of a composition that acts outside training, beside recipes such as PoSE; else all of it."""
    acting = [part for part in scheme.schemes if not isinstance(part, Recipe) or part.needs_whole_text]
    return acting[0] if len(acting) == 1 else scheme
