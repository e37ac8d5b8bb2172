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
from hf_posenc.patches.shared.rope_parameters import by_layer_type

LENGTHS = ("max_position_embeddings", "n_positions", "original_max_position_embeddings")
ROTATIONS = ("rope_parameters", "rope_scaling")
POSITIVE = (
    "rope_theta", "factor", "attention_factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"
)  # fmt: skip
PER_PAIR = ("short_factor", "long_factor")
NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": PER_PAIR,
}
"""RoPE type → what transformers computes its frequencies from, and has no default for. YaRN's factor may be None."""
NOT_NONE = ("rope_theta", "original_max_position_embeddings")  # where they are written at all


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
            kind = parameters.get("rope_type", parameters.get("type", "default"))
            check_rope_type(kind, where)
            check_present(kind, parameters, where)
            check_factors_of_pairs(parameters, rotated_pairs(config, parameters), where)


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


def check_one_configuration(model: Any, base: Any) -> None:
    """Refuse a model whose configuration says other positions than that of its base model, which computes with its own.

    Raises:
        HostConfigInvalid: the two configurations differ in length or rotation.
    """
    outer, config = getattr(model, "config", None), base.config
    for name in (LENGTHS[0], ROTATIONS[0]) if type(outer) is type(config) else ():
        said, used = getattr(outer, name, None), getattr(config, name, None)
        if said != used:
            raise HostConfigInvalid(
                f"{name} of this {type(model).__name__} is {shown(said)}, and the {type(base).__name__} in it has a "
                f"configuration of its own with {shown(used)}, by which it computes. Set model.config = "
                "model.base_model.config, or load the model with the other configuration."
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


def check_present(kind: str, parameters: Mapping[str, Any], where: str) -> None:
    """Refuse RoPE parameters that lack what transformers computes their frequencies from."""
    lacking = [name for name in NEEDED.get(kind, ()) if parameters.get(name) is None]
    lacking += [name for name in NOT_NONE if parameters.get(name, name) is None]
    lacking += ["factor"] if kind == "yarn" and "factor" not in parameters else []
    if lacking:
        raise HostConfigInvalid(
            f"The rotation of {where}, of type {kind}, has no {lacking[0]}: {shown(dict(parameters))}. "
            "Correct the configuration."
        )


def check_factors_of_pairs(parameters: Mapping[str, Any], pairs: int | None, where: str) -> None:
    """Refuse LongRoPE's factors where they are not one positive number for each rotated pair of channels."""
    for name in PER_PAIR:
        factors = parameters.get(name)
        if factors is None:
            continue
        listed: list[Any] = list(factors) if isinstance(factors, (list, tuple)) else [None]
        if not all(type(factor) in (int, float) and 0 < factor < math.inf for factor in listed):
            raise HostConfigInvalid(
                f"{name} of {where} must be a list of finite numbers greater than 0, got {shown(factors)}. "
                "Correct the configuration."
            )
        if pairs is not None and len(listed) != pairs:
            raise HostConfigInvalid(
                f"{name} of {where} has {len(listed)} numbers, and a head of it {pairs} rotated pairs of channels. "
                "Correct the configuration."
            )


def rotated_pairs(config: Mapping[str, Any], parameters: Mapping[str, Any]) -> int | None:
    """Pairs of channels of a head that transformers rotates; None where the configuration does not say it so."""
    width, heads, head = (config.get(name) for name in ("hidden_size", "num_attention_heads", "head_dim"))
    if head is None and "qk_rope_head_dim" not in config and type(width) is type(heads) is int and heads > 0:
        head = width // heads
    share = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    return int(head * share) // 2 if type(head) is int and type(share) in (int, float) else None
