"""Check the positions in a configuration: its lengths and RoPE parameters, and that the model was built by them.

transformers accepts a RoPE base of 0 or a length of −1, and computes meaningless numbers. What a patch keeps of a
rotation, what it stretches and how long the weights were trained is computed from the configuration. A rotary module
remembers the one it was built with, so a module made anew from the present configuration is compared with it.
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
FREQUENCIES = "inv_freq"  # how names of such buffers end
UNSCALED = "original_"  # stands before that in the name of the copy, which does not follow the length
KIND, FACTOR = "rope_type", "attention_scaling"  # how names of such attributes end
LENGTH = "original_max_seq_len"  # ``max_position_embeddings`` when the module was made
PUT_BACK = (
    "Put back what the model was built with, or load the weights with this configuration: "
    "from_pretrained(NAME, config=config)."
)


def check_lengths_and_rotation(config: Mapping[str, Any], where: str) -> None:
    """Refuse lengths and RoPE parameters that are out of range. What is missing, transformers refuses."""
    from transformers import ROPE_INIT_FUNCTIONS

    known = sorted({"default", "mrope", *ROPE_INIT_FUNCTIONS})
    check_numbers(config, where)
    for name in ROTATIONS:
        given = config.get(name)
        if given is not None and not isinstance(given, Mapping):
            raise HostConfigInvalid(f"{name} of {where} must be an object, got {shown(given)}. Correct it.")
        for parameters in by_layer_type(given).values():
            check_numbers(parameters, where)
            kind = parameters.get("rope_type", parameters.get("type", "default"))
            if kind not in known:
                raise HostConfigInvalid(
                    f"rope_type of {where} is {shown(kind)}, which transformers does not know."
                    f"{nearest(kind, known)} Use one of {', '.join(known)}."
                )


def check_numbers(values: Mapping[str, Any], where: str) -> None:
    """Refuse lengths that are no number of tokens, and other values that are not positive."""
    for name in LENGTHS:
        if values.get(name) is not None:
            try:
                whole_length(name, values[name])
            except LengthContradiction as error:
                raise HostConfigInvalid(f"The configuration of {where} is wrong: {error}") from error
    for name in (*POSITIVE, *PER_PAIR):
        given = values.get(name)
        several = name in PER_PAIR and isinstance(given, (list, tuple))
        if given is not None and not all(map(_is_positive, given if several else [given])):
            raise HostConfigInvalid(
                f"{name} of {where} must be finite and greater than 0, got {shown(given)}. Correct the configuration."
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
                "trained_length= to say what the weights saw."
            )
        for what, before, after in changes(module, fresh):
            raise HostConfigInvalid(
                f"{name}.{what} of this {type(base).__name__} is {before}, and its configuration gives {after}: one of "
                f"the two was changed after the model was built. {PUT_BACK}"
            )


def rotary_modules(base: nn.Module) -> Iterator[tuple[str, Any, Any]]:
    """Name of each rotary module that is made from a configuration alone, the module, and one made anew."""
    config: Any = base.config
    for name, module in base.named_modules():
        if not any(buffer.endswith(FREQUENCIES) for buffer in module._buffers) or "config" not in vars(module):
            continue
        if list(inspect.signature(type(module).__init__).parameters)[1:2] != ["config"]:
            continue  # nothing says how it was made
        own: Any = module.config  # it keeps the old one where the model's was replaced
        try:
            with torch.device("cpu"):
                yield name, module, type(module)(config if type(own) is type(config) else own)
        except PosEncError:
            raise
        except Exception as error:  # whatever a class says of RoPE parameters that lack something
            raise HostConfigInvalid(
                f"The configuration of this {type(base).__name__} makes no rotation any more "
                f"({type(error).__name__}: {first_line(error)}). {PUT_BACK}"
            ) from error


def changes(module: Any, fresh: Any) -> Iterator[tuple[str, str, str]]:
    """What a rotary module has otherwise than one made anew: name, value, and value in the new one."""
    for name, was in vars(module).items():
        now = vars(fresh).get(name)
        other = name.endswith(FACTOR) and (now is None or abs(was - now) > ROUNDING * abs(was))
        if other or (name.endswith(KIND) and was != now):
            yield name, shown(was), shown(now)
    kinds = getattr(module, KIND, None)
    follows_length = any(
        kind and ("dynamic" in kind or "longrope" in kind)
        for kind in (kinds.values() if isinstance(kinds, dict) else [kinds])
    )
    for name, live in module._buffers.items():
        if not name.endswith(FREQUENCIES) or live is None or live.is_meta or (follows_length and UNSCALED not in name):
            continue
        expected = fresh._buffers.get(name)
        if expected is None or live.shape != expected.shape:
            yield name, f"for {len(live)} pairs", f"{0 if expected is None else len(expected)} pairs"
        elif not alike(live.detach().cpu(), expected):
            yield name, shown(live.tolist()), f"other frequencies, {shown(expected.tolist())}"


def alike(live: Tensor, fresh: Tensor) -> bool:
    """Whether frequencies are equal up to rounding, or equal once both are cast to half precision."""
    live, fresh = live.double(), fresh.to(live.dtype).double()  # whatever a model was cast to
    return bool(((live - fresh).abs() <= ROUNDING * fresh.abs()).all()) or is_cast_of(live, fresh)
