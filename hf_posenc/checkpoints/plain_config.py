"""The configuration under which plain transformers computes what a patched model computes, where there is one.

A scheme says which RoPE type it is (`Scheme.native`); transformers' own function of that type is then compared with the
rotation of the scheme, so that a release that reads the parameters otherwise is noticed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_posenc.checkpoints.old_rope_keys import check_both_forms
from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.core.geometry import Geometry, HostRotary, Rotation
from hf_posenc.errors import NotExpressible, NotPatched, PosEncError
from hf_posenc.patches.attention import PatchedAttention
from hf_posenc.patching.expected_effect import same_rotation
from hf_posenc.patching.state import base_model_of, describe, scheme_of
from hf_posenc.patching.stored.config_guard import PATCH_KEYS
from hf_posenc.schemes.base import Scheme, overrides
from hf_posenc.schemes.recipes.recipe import Recipe

HOOKS = ("regions", "row_rotation", "bias", "values", "embed", "prepare", "query_scale", "row_scale", "sink", "visible")
LENGTH_DEPENDENT = ("regions", "row_rotation")
OF_AXES = ("mrope_section", "mrope_interleaved")


@dataclass(frozen=True)
class PlainConfig:
    """What plain transformers has to be told.

    Attributes:
        config: of the whole model.
        section: name of the part of it that configures the patched model, such as ``text_config``; None for all of it.
        parameters: the new entries of its ``rope_parameters``.
        short: whether logits are equal up to the trained length only.
    """

    config: Any
    section: str | None
    parameters: dict[str, Any]
    short: bool

    @property
    def of_base(self) -> Any:
        """The configuration of the patched model."""
        return self.config if self.section is None else getattr(self.config, self.section)


def plain_config(model: Any) -> PlainConfig:
    """The configuration under which plain transformers computes the same.

    Raises:
        NotPatched: the model carries no scheme.
        NotExpressible: as `export_native`.
    """
    base, adapter = base_model_of(model)
    if hasattr(model, "peft_config"):
        raise NotExpressible(
            f"This {type(model).__name__} has a PEFT adapter, which is no part of a plain checkpoint. "
            "Call its merge_and_unload() first, and pass what that returns."
        )
    report, scheme = describe(model), acting_part(scheme_of(model))
    check_rotates(base.config, adapter)
    parameters, short = native_parameters(model)
    plain = PlainConfig(copy.deepcopy(model.config), section_of(model.config, base.config), parameters, short)
    config = plain.of_base
    for name in PATCH_KEYS:
        for holder in (plain.config, config):
            if hasattr(holder, name):
                delattr(holder, name)
    config.rope_parameters = kept_parameters(config) | parameters
    if short and "original_max_position_embeddings" not in parameters:
        config.max_position_embeddings = report.trained_length  # where transformers looks for it
    with explained_refusal(parameters):
        check_both_forms(config)
        geometry = adapter.geometry(config, trained_length=1, target_length=1)
    rotary = rotary_at_length(config, report.trained_length, geometry) if short else geometry.rotary
    own = scheme.geometry.rotary
    same_axes = short or rotary is None or own is None or rotary.axes == own.axes
    if rotary is None or not same_axes or not _same(rotary, scheme, report.trained_length if short else None):
        raise NotExpressible(
            f"transformers computes another rotation than scheme {report.scheme!r} from {parameters}. Save it with "
            "model.save_pretrained and load it with hf_posenc.from_pretrained."
        )
    return plain


def check_rotates(config: Any, adapter: Any) -> None:
    """Refuse models whose class in transformers has no rotation that a configuration could state.

    Raises:
        NotExpressible: it has none, such as BERT or GPT-2.
    """
    if adapter.geometry(config, trained_length=1, target_length=1).rotary is None:
        raise NotExpressible(
            f"transformers does not rotate queries and keys in a {config.model_type}, so that no scheme of it can be "
            "exported. Save it with model.save_pretrained, and load it with this package."
        )


def section_of(config: Any, own: Any) -> str | None:
    """Name of the part of a model's configuration that configures its patched base model; None for all of it.

    Base models may have a copy of their part, which is therefore known by its type of model.
    """
    parts = {name: getattr(getattr(config, name, None), "model_type", None) for name in config.sub_configs}
    return next((name for name, kind in parts.items() if kind == own.model_type), None)


def is_expressible(model: Any) -> bool:
    """Whether `export_native` can write a model."""
    try:
        plain_config(model)
    except (NotExpressible, NotPatched):
        return False
    return True


def kept_parameters(config: Any) -> dict[str, Any]:
    """What a configuration states beside a scaling: the share of rotated channels, and how pairs are shared by axes."""
    stated = getattr(config, "rope_parameters", None) or {}
    return {name: stated[name] for name in ("partial_rotary_factor", *OF_AXES) if name in stated}


@contextmanager
def explained_refusal(parameters: dict[str, Any]) -> Iterator[None]:
    """Raise what a model class of transformers says against RoPE parameters as one of our errors.

    Raises:
        NotExpressible: it takes none of this type.
    """
    try:
        yield
    except PosEncError:
        raise
    except Exception as error:  # each family validates in its own way
        raise NotExpressible(
            f"transformers does not take {parameters} for this model: {reason_of(error)}. Save it with "
            "model.save_pretrained and load it with hf_posenc.from_pretrained."
        ) from error


def native_parameters(model: Any) -> tuple[dict[str, Any], bool]:
    """``rope_parameters`` of a patched model's scheme, and whether they are equal up to the trained length only.

    Raises:
        NotExpressible: transformers has no such RoPE type, the scheme does more than rotate, or layers differ.
    """
    whole, name = scheme_of(model), describe(model).scheme
    scheme = acting_part(whole)
    single = len(scheme.schemes) == 1
    everywhere = scheme.native() if single else None
    within_trained = scheme.native_within_trained() if single and everywhere is None else None
    beyond_rotation = [
        hook for hook in HOOKS if overrides(scheme, hook) and not (within_trained and hook in LENGTH_DEPENDENT)
    ]
    parameters = everywhere or within_trained
    if parameters is None or beyond_rotation:
        raise NotExpressible(
            f"Scheme {name!r} has no counterpart among transformers' RoPE types. Save it with model.save_pretrained "
            "and load it with hf_posenc.from_pretrained."
        )
    if any(module.scheme is not whole for module in model.modules() if isinstance(module, PatchedAttention)):
        raise NotExpressible(
            f"Scheme {name!r} is not that of every layer, and a plain checkpoint is exported with one. Save it with "
            "model.save_pretrained and load it with hf_posenc.from_pretrained."
        )
    if parameters["rope_type"] not in {"default", *ROPE_INIT_FUNCTIONS}:
        raise NotExpressible(
            f"transformers {transformers.__version__} does not know the RoPE type {parameters['rope_type']!r} yet. "
            "Update it, or save the model with model.save_pretrained."
        )
    return parameters, everywhere is None


def acting_part(scheme: Scheme) -> Scheme:
    """The one part of a composition that acts outside training, beside recipes such as PoSE; else all of it."""
    acting = [part for part in scheme.schemes if not isinstance(part, Recipe) or part.needs_whole_text]
    return acting[0] if len(acting) == 1 else scheme


def rotary_at_length(config: Any, length: int, geometry: Geometry) -> HostRotary:
    """The rotation transformers computes at ``length`` tokens from a length-dependent configuration.

    Args:
        config: of the plain model.
        length: in tokens.
        geometry: that the adapter reads from ``config``.
    """
    parameters, own = config.rope_parameters, geometry.rotary
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), seq_len=length)
    layout, whole = "half" if own is None else own.rotation.layout, geometry.rotary_dim == geometry.head_dim
    rotation = Rotation(tuple(frequencies.double().tolist()), layout, amplitude=1.0 if whole else float(factor))
    return HostRotary(rotation, parameters["rope_theta"], factor**2 if whole else 1.0)


def _same(rotary: HostRotary, scheme: Any, length: int | None) -> bool:
    own = scheme.rotation() if length is None else scheme.rotation_of(length)
    return same_rotation(rotary.rotation, own) and abs(rotary.logit_scale - scheme.logit_scale()) <= (
        1e-6 * rotary.logit_scale
    )
