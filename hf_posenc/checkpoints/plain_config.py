"""Find the configuration with which plain transformers has the same outputs as a patched model, if there is one.

A scheme states its RoPE type (`Scheme.native`). The rotation that transformers itself computes for that type is
compared with the scheme's, to detect releases that read the parameters differently.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import ROPE_INIT_FUNCTIONS

from hf_posenc.checkpoints.native_parameters import (
    INSTEAD,
    acting_schemes,
    kept_parameters,
    rope_parameters_of,
    types_of_layers,
)
from hf_posenc.checkpoints.old_rope_keys import check_both_forms
from hf_posenc.checkpoints.static_rotation import rotates_nothing, static_rotation
from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.core.geometry import Geometry, HostRotary, Rotation
from hf_posenc.errors import NotExpressible, NotPatched, PosEncError, UnsupportedModel
from hf_posenc.patches.adapter import Adapter
from hf_posenc.patching.config_guard import PATCH_KEYS
from hf_posenc.patching.expected_effect import same_rotation
from hf_posenc.patching.state import base_model_of, describe
from hf_posenc.patching.text_limits import is_cut
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.host_rotation import HostRotation

OTHER_WINDOWS = ("max_sequence_length", "max_seq_length", "max_seq_len", "seq_length", "seq_len", "model_max_length")
"""Further entries of a configuration that vLLM reads as the length of texts, or as its upper limit."""


@dataclass(frozen=True)
class PlainConfig:
    """A configuration for plain transformers, and the rotations that transformers computes with it.

    Attributes:
        config: configuration of the whole model.
        section: name of its part for the patched base model, such as ``text_config``; None for the whole.
        parameters: the new ``rope_parameters``.
        short: whether logits are equal up to the trained length only.
        compared_length: length in tokens up to which logits are equal.
        rotaries: maps each type of rotated layers to the rotation that transformers computes; None stands for all.
    """

    config: Any
    section: str | None
    parameters: dict[str, Any]
    short: bool
    compared_length: int
    rotaries: dict[str | None, HostRotary] = field(default_factory=dict)

    @property
    def of_base(self) -> Any:
        """The configuration of the patched base model."""
        return self.config if self.section is None else getattr(self.config, self.section)


def plain_config(model: Any) -> PlainConfig:
    """The configuration with which plain transformers has the same outputs.

    Raises:
        NotPatched: the model carries no scheme.
        NotExpressible: transformers cannot compute the scheme, see `hf_posenc.export`.
    """
    base, adapter = base_model_of(model)
    check_no_adapter(model)
    check_rotates(base.config, adapter)
    parameters, short = rope_parameters_of(model)
    report = describe(model)
    trained_length, target_length = report.trained_length, report.target_length
    section = section_of(model.config, base.config)
    length = trained_length if short else target_length
    plain = PlainConfig(copy.deepcopy(model.config), section, parameters, short, length)
    config = plain.of_base
    for name in OTHER_WINDOWS:
        if is_cut(vars(config).get(name), report):
            setattr(config, name, target_length)
    for name in PATCH_KEYS:
        for holder in (plain.config, config):
            if hasattr(holder, name):
                delattr(holder, name)
    config.rope_parameters = parameters
    if short and "original_max_position_embeddings" not in parameters:
        config.max_position_embeddings = trained_length  # transformers reads the trained length from here
    with explained_refusal(parameters):
        check_both_forms(config)
        geometry = adapter.geometry(config, trained_length=1, target_length=1)
        by_list = short or parameters.get("rope_type") == "longrope"
        at_trained = rotary_at_length(config, adapter, trained_length, geometry) if by_list else None
    schemes = acting_schemes(base)
    types = types_of_layers(base.config, len(schemes))
    for number, (scheme, kind) in enumerate(zip(schemes, types, strict=True)):
        rotary = geometry.of_layer(number).rotary
        rotary = rotary and (at_trained or rotary)  # adapters ignore the scaling of length-dependent RoPE types
        if rotary is None and rotates_nothing(scheme):
            rotary = at_trained  # an adapter may read tiny frequencies as no rotation
        check_same(rotary, scheme, trained_length if short else None)
        if rotary is not None:
            plain.rotaries[kind] = rotary
    return plain


def check_no_adapter(model: Any) -> None:
    """Refuse a model with a PEFT adapter."""
    if hasattr(model, "peft_config"):
        raise NotExpressible(
            f"This {type(model).__name__} has a PEFT adapter, which a plain checkpoint cannot contain. "
            "Call its merge_and_unload() first, and pass the result."
        )


def check_same(rotary: HostRotary | None, scheme: Scheme, length: int | None) -> None:
    """Compare the rotation that transformers computes in a layer with that of the layer's scheme.

    Args:
        rotary: rotation that transformers computes from the configuration; None for no rotation.
        scheme: scheme that acts in the layer outside training.
        length: length at which to compare a scheme that depends on the length; None for other schemes.

    Raises:
        NotExpressible: the rotations differ.
    """
    own = scheme.geometry.rotary
    if rotary is None and own is None and isinstance(scheme, HostRotation):
        return
    if rotary is not None and (length is not None or own is None or rotary.axes == own.axes):
        by_length: Any = scheme
        rotation = scheme.rotation() or static_rotation(scheme) if length is None else by_length.rotation_of(length)
        scale = rotary.logit_scale
        if same_rotation(rotary.rotation, rotation) and abs(scale - scheme.logit_scale()) <= 1e-6 * scale:
            return
    raise NotExpressible(
        f"transformers computes another rotation than scheme {scheme.shown_name!r} in some layers. {INSTEAD}"
    )


def check_rotates(config: Any, adapter: Any) -> None:
    """Refuse models that transformers does not rotate, such as BERT or GPT-2, as they have no RoPE parameters."""
    if adapter.geometry(config, trained_length=1, target_length=1).rotary is None:
        raise NotExpressible(
            f"transformers does not rotate queries and keys in a {config.model_type}, so it states no scheme there. "
            "to='auto' (--to auto) writes some schemes of GPT-2, to='bundle' any scheme of a model of transformers."
        )


def section_of(config: Any, own: Any) -> str | None:
    """Name of the part of a model's configuration for its patched base model; None for the whole.

    The part is found by its ``model_type``, because the base model may have a copy of it.
    """
    parts = {name: getattr(getattr(config, name, None), "model_type", None) for name in config.sub_configs}
    return next((name for name, kind in parts.items() if kind == own.model_type), None)


def is_expressible(model: Any) -> bool:
    """Whether `hf_posenc.export` can write a model for plain transformers."""
    try:
        plain_config(model)
    except (NotExpressible, NotPatched, UnsupportedModel):  # the last is raised for an encoder–decoder
        return False
    return True


@contextmanager
def explained_refusal(parameters: dict[str, Any]) -> Iterator[None]:
    """Turn the error of a transformers class that refuses RoPE parameters into `NotExpressible`."""
    try:
        yield
    except PosEncError:
        raise
    except Exception as error:  # each family validates in its own way
        raise NotExpressible(
            f"transformers does not accept {parameters} for this model: {reason_of(error)}. {INSTEAD}"
        ) from error


def rotary_at_length(config: Any, adapter: Adapter, length: int, geometry: Geometry) -> HostRotary:
    """The rotation that transformers computes at ``length`` tokens from a length-dependent configuration.

    Args:
        config: configuration of the plain model.
        adapter: adapter of the model.
        length: length in tokens.
        geometry: geometry that the adapter reads from ``config``.
    """
    parameters = config.rope_parameters
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), seq_len=length)
    if factor != 1.0 and not has_attention_factor(config, adapter):
        factor = 1.0
    layout = "half" if geometry.rotary is None else geometry.rotary.rotation.layout
    whole = geometry.rotary_dim == geometry.head_dim
    rotation = Rotation(tuple(frequencies.double().tolist()), layout, amplitude=1.0 if whole else float(factor))
    return HostRotary(rotation, parameters["rope_theta"], factor**2 if whole else 1.0)


def has_attention_factor(config: Any, adapter: Adapter) -> bool:
    """Whether the model's class applies the attention factor of its RoPE type (Llama 4 does not).

    Adapters ignore the factor of a length-dependent rotation, so the test uses a rotation of fixed frequencies.
    """
    fixed = copy.deepcopy(config)
    fixed.rope_parameters = kept_parameters(config.rope_parameters) | {
        "rope_type": "yarn", "rope_theta": config.rope_parameters["rope_theta"], "factor": 2.0, "attention_factor": 2.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    rotary = adapter.geometry(fixed, trained_length=1, target_length=1).rotary
    return rotary is not None and (rotary.logit_scale, rotary.rotation.amplitude) != (1.0, 1.0)
