"""Check the lengths and RoPE parameters of a configuration, and that the model was built with them.

transformers accepts a RoPE base of 0 or a length of −1, and computes meaningless numbers. A patch computes the model's
rotation and its trained length from the configuration. Each rotary module still has the values it was built with, so
it is compared with a new module built from the present configuration.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.lengths import whole_length
from hf_posenc.errors import HostConfigInvalid, LengthContradiction, PosEncError, first_line, nearest, shown
from hf_posenc.patches.shared.rope_parameters import TRAINED_LENGTH, TRAINED_THETA, by_layer_type
from hf_posenc.patches.shared.rotary_host import is_cast_of

LENGTHS = ("max_position_embeddings", "n_positions", "original_max_position_embeddings", TRAINED_LENGTH)
ROTATIONS = ("rope_parameters", "rope_scaling")
POSITIVE = (
    "rope_theta", "factor", "attention_factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor",
    TRAINED_THETA,
)  # fmt: skip
PER_PAIR = ("short_factor", "long_factor")  # of LongRoPE

ROUNDING = 1e-5  # relative
FREQUENCIES = "inv_freq"  # suffix of the names of frequency buffers
UNSCALED = "original_"  # precedes it in the name of the copy that does not change with the length of the text
KIND, FACTOR = "rope_type", "attention_scaling"  # suffixes of attribute names
LENGTH = "original_max_seq_len"  # attribute: ``max_position_embeddings`` when the module was built
PUT_BACK = (
    "Put back what the model was built with, or load the weights with this configuration: "
    "from_pretrained(NAME, config=config)."
)


def check_lengths_and_rotation(config: Mapping[str, Any], where: str) -> None:
    """Refuse lengths and RoPE parameters that are out of range. transformers itself refuses missing parameters."""
    from transformers import ROPE_INIT_FUNCTIONS

    known = sorted({"default", "mrope", *ROPE_INIT_FUNCTIONS})
    check_numbers(config, where)
    for name in ROTATIONS:
        rope = config.get(name)
        if rope is not None and not isinstance(rope, Mapping):
            raise HostConfigInvalid(f"{name} of {where} must be an object, got {shown(rope)}. Correct it.")
        for parameters in by_layer_type(rope).values():
            check_numbers(parameters, where)
            kind = parameters.get("rope_type", parameters.get("type", "default"))
            if kind not in known:
                raise HostConfigInvalid(
                    f"rope_type of {where} is {shown(kind)}, which transformers does not know."
                    f"{nearest(kind, known)} Use one of {', '.join(known)}."
                )


def check_numbers(values: Mapping[str, Any], where: str) -> None:
    """Refuse lengths that are not a number of tokens, and other values that are not positive."""
    for name in LENGTHS:
        if values.get(name) is not None:
            try:
                whole_length(name, values[name])
            except LengthContradiction as error:
                raise HostConfigInvalid(f"The configuration of {where} is wrong: {error}") from error
    for name in (*POSITIVE, *PER_PAIR):
        value = values.get(name)
        is_list = name in PER_PAIR and isinstance(value, (list, tuple))
        if value is not None and not all(map(_is_positive, value if is_list else [value])):
            raise HostConfigInvalid(
                f"{name} of {where} must be finite and greater than 0, got {shown(value)}. Correct the configuration."
            )
    if len({len(values[name]) for name in PER_PAIR if values.get(name) is not None}) > 1:
        raise HostConfigInvalid(
            f"{' and '.join(PER_PAIR)} of {where} have different lengths. Correct the configuration."
        )


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def check_rotation(base: nn.Module, *, trained_length_given: bool) -> None:
    """Refuse a model whose configuration or rotary modules were changed after it was built."""
    for name, module, fresh in rotary_modules(base):
        was, now = getattr(module, LENGTH, None), getattr(fresh, LENGTH, None)
        if not trained_length_given and was is not None and was != now:
            raise HostConfigInvalid(
                f"max_position_embeddings of this {type(base).__name__} is {shown(now)}, and {name} was built for "
                f"{shown(was)}: the configuration was changed afterwards. Put back {shown(was)}, or pass "
                "trained_length=, the length the weights were trained on."
            )
        for attribute, live, expected in differences(module, fresh):
            raise HostConfigInvalid(
                f"{name}.{attribute} of this {type(base).__name__} is {live}, and its configuration gives {expected}: "
                f"one of the two was changed after the model was built. {PUT_BACK}"
            )


def rotary_modules(base: nn.Module) -> Iterator[tuple[str, Any, Any]]:
    """Each rotary module that is built from a configuration alone: its name, the module, and a newly built one."""
    config: Any = base.config
    for name, module in base.named_modules():
        if not any(buffer.endswith(FREQUENCIES) for buffer in module._buffers) or "config" not in vars(module):
            continue
        if list(inspect.signature(type(module).__init__).parameters)[1:2] != ["config"]:
            continue  # the arguments it was built with are unknown
        own: Any = module.config  # still the old one if the model's configuration was replaced
        try:
            with torch.device("cpu"):
                yield name, module, type(module)(config if type(own) is type(config) else own)
        except PosEncError:
            raise
        except Exception as error:  # any error that a class raises for incomplete RoPE parameters
            raise HostConfigInvalid(
                f"The configuration of this {type(base).__name__} makes no rotation any more "
                f"({type(error).__name__}: {first_line(error)}). {PUT_BACK}"
            ) from error


def differences(module: Any, fresh: Any) -> Iterator[tuple[str, str, str]]:
    """Differences between a rotary module and a newly built one: attribute, value, and value in the new module."""
    for name, live in vars(module).items():
        expected = vars(fresh).get(name)
        scales_differently = name.endswith(FACTOR) and (expected is None or abs(live - expected) > ROUNDING * abs(live))
        if scales_differently or (name.endswith(KIND) and live != expected):
            yield name, shown(live), shown(expected)
    kinds = getattr(module, KIND, None)
    kinds = list(kinds.values()) if isinstance(kinds, dict) else [kinds]
    follows_length = any("dynamic" in kind or "longrope" in kind for kind in kinds if kind)
    for name, live in module._buffers.items():
        if not name.endswith(FREQUENCIES) or live is None or live.is_meta or (follows_length and UNSCALED not in name):
            continue
        expected = fresh._buffers.get(name)
        if expected is None or live.shape != expected.shape:
            yield name, f"for {len(live)} pairs", f"{0 if expected is None else len(expected)} pairs"
        elif not same_frequencies(live.detach().cpu(), expected):
            yield name, shown(live.tolist()), f"other frequencies, {shown(expected.tolist())}"


def same_frequencies(live: Tensor, fresh: Tensor) -> bool:
    """Whether frequencies are equal up to rounding, or equal once both are cast to half precision."""
    live, fresh = live.double(), fresh.to(live.dtype).double()  # first rounded as the model was when it was cast
    return bool(((live - fresh).abs() <= ROUNDING * fresh.abs()).all()) or is_cast_of(live, fresh)
