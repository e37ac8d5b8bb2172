"""Check lengths and RoPE parameters of a model's configuration before anything is computed from them.

transformers accepts a RoPE base of 0 or a length of −1, and computes meaningless numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hf_posenc.core.lengths import whole_length
from hf_posenc.errors import (
    HostConfigInvalid,
    LengthContradiction,
    nearest,
    shown,
)
from hf_posenc.patches.rope_parameters import by_layer_type

LENGTHS = ("max_position_embeddings", "n_positions", "original_max_position_embeddings")
ROTATIONS = ("rope_parameters", "rope_scaling")
POSITIVE = ("rope_theta", "factor", "attention_factor", "beta_fast", "beta_slow")


def check_lengths_and_rotation(config: Mapping[str, Any], where: str) -> None:
    """Refuse lengths and RoPE parameters that are out of range.

    Args:
        config: a configuration's content.
        where: the model or checkpoint it belongs to, for messages.

    Raises:
        HostConfigInvalid: a value has the wrong type or lies outside its range.
    """
    check_numbers(config, where)
    for name in ROTATIONS:
        for parameters in rotations(name, config.get(name), where):
            check_numbers(parameters, where)
            check_rope_type(parameters.get("rope_type", parameters.get("type", "default")), where)


def check_complete(config: Mapping[str, Any], where: str) -> None:
    """Refuse a live configuration that lacks a value its model was built from.

    transformers fills in what a file leaves out, but not what a live configuration has lost.

    Raises:
        HostConfigInvalid: a length, or the kind or base of the rotation, is None.
    """
    for name in LENGTHS[:2]:
        if name in config and config[name] is None:
            raise HostConfigInvalid(f"{name} of {where} is None. Set it to the length the model was built with.")
    if ROTATIONS[0] not in config:
        return
    given = config[ROTATIONS[0]]
    for rotation in rotations(ROTATIONS[0], given, where) if isinstance(given, Mapping) else [given]:
        for name in ("rope_type", "rope_theta"):
            if not isinstance(rotation, Mapping) or rotation.get(name) is None:
                raise HostConfigInvalid(
                    f"{ROTATIONS[0]} of {where} have no {name}, they are {shown(rotation)}. "
                    "Put back those that the model was built with."
                )


def rotations(name: str, given: Any, where: str) -> Iterator[Mapping[str, Any]]:
    """The RoPE parameters of a configuration: none, one set, or one for each type of layer."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise HostConfigInvalid(
            f"{name} of {where} must be an object such as {{'rope_type': 'default'}}, got {shown(given)}. Correct it."
        )
    yield from by_layer_type(given).values()


def check_numbers(values: Mapping[str, Any], where: str) -> None:
    """Refuse lengths that are no number of tokens, and other values that are not positive."""
    for name in LENGTHS:
        if values.get(name) is not None:
            try:
                whole_length(name, values[name])
            except LengthContradiction as error:
                raise HostConfigInvalid(f"The configuration of {where} is wrong: {error}") from error
    for name in POSITIVE:
        value = values.get(name)
        if value is None:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise HostConfigInvalid(
                f"{name} of {where} must be a finite number greater than 0, got {shown(value)}. "
                "Correct the configuration."
            )


def check_rope_type(kind: Any, where: str) -> None:
    """Refuse a RoPE type that transformers does not have."""
    from transformers import ROPE_INIT_FUNCTIONS

    known = sorted({"default", "mrope", *ROPE_INIT_FUNCTIONS})
    if kind not in known:
        raise HostConfigInvalid(
            f"rope_type of {where} is {shown(kind)}, which transformers does not know.{nearest(kind, known)} "
            f"Use one of {', '.join(known)}."
        )
