"""Refuse models whose rotary modules and configuration disagree.

What a patch keeps of a rotation, what it stretches and how long the weights were trained is computed from the
configuration. A rotary module remembers the one it was built with: its frequencies, what its cosines are multiplied
with, the kind of scaling, and the length. A module made anew from the present configuration is compared with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.errors import HostConfigInvalid, PosEncError, first_line, shown
from hf_posenc.patches.shared.rotary_host import is_cast_of

ROUNDING = 1e-5  # relative
FREQUENCIES = "inv_freq"  # how names of such buffers end
UNSCALED = "original_"  # stands before that in the name of the copy, which does not follow the length
LENGTH = "original_max_seq_len"  # ``max_position_embeddings`` when the module was made
FACTOR = "attention_scaling"  # how names of what cosines and sines are multiplied with end
PUT_BACK = (
    "Put back what the model was built with, or load the weights with this configuration: "
    "from_pretrained(NAME, config=config)."
)


def check_rotation(base: nn.Module, *, trained_length_given: bool) -> None:
    """Refuse a model whose configuration or rotary modules were changed after it was built.

    Other shapes are left to `other_shapes`: widths are checked before, and explain them better.

    Args:
        base: the base model.
        trained_length_given: whether the caller says what length the weights were trained for.

    Raises:
        HostConfigInvalid: a length, a kind of scaling, a factor or a frequency differs between the two.
    """
    cls = type(base).__name__
    for name, module, fresh in rotary_modules(base):
        if not trained_length_given:
            check_length(name, module, fresh, cls)
        for kind in remembered(module, "rope_type"):
            was, now = getattr(module, kind), getattr(fresh, kind, None)
            if was != now:
                raise HostConfigInvalid(
                    f"rope_parameters of this {cls} say the rope_type {shown(now)}, and {name} was built for "
                    f"{shown(was)}: the configuration was changed afterwards. {PUT_BACK}"
                )
        for buffer, live, expected in frequencies_of(module, fresh):
            if expected is None or (live.shape == expected.shape and not alike(live, expected)):
                raise HostConfigInvalid(
                    f"{name}.{buffer} of this {cls} holds other frequencies than its configuration gives: one of the "
                    f"two was changed after the model was built. {PUT_BACK}"
                )
        for factor in remembered(module, FACTOR):
            was, now = getattr(module, factor), getattr(fresh, factor, None)
            if now is None or abs(was - now) > ROUNDING * abs(was):
                raise HostConfigInvalid(
                    f"{name}.{factor} of this {cls} is {shown(was)}, and its configuration gives {shown(now)}: one of "
                    f"the two was changed after the model was built. {PUT_BACK}"
                )


def other_shapes(base: nn.Module) -> HostConfigInvalid | None:
    """The refusal of a model that rotates another number of channels than its configuration says; None for no such."""
    for name, module, fresh in rotary_modules(base):
        for buffer, live, expected in frequencies_of(module, fresh):
            if expected is not None and live.shape != expected.shape:
                return HostConfigInvalid(
                    f"The configuration of this {type(base).__name__} gives {name}.{buffer} {len(expected)} pairs of "
                    f"channels, and it was built with {len(live)}: the configuration was changed afterwards. {PUT_BACK}"
                )
    return None


def rotary_modules(base: nn.Module) -> Iterator[tuple[str, Any, Any]]:
    """Name of each rotary module that is made from a configuration alone, the module, and one made anew.

    Raises:
        HostConfigInvalid: the configuration makes none.
    """
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


def check_length(name: str, module: Any, fresh: Any, cls: str) -> None:
    """Refuse a length that is not the one that a rotary module was built with, which nothing computes with.

    Raises:
        HostConfigInvalid: the module was built with another length.
    """
    was, now = getattr(module, LENGTH, None), getattr(fresh, LENGTH, None)
    if was is not None and was != now:
        raise HostConfigInvalid(
            f"max_position_embeddings of this {cls} is {shown(now)}, and {name} was built for {shown(was)}: the "
            f"configuration was changed afterwards. Put back {shown(was)}, or pass trained_length= to say what the "
            "weights saw."
        )


def remembered(module: Any, end: str) -> list[str]:
    """Names of attributes that end so: one, or one for each type of layer."""
    return [name for name in vars(module) if name.endswith(end)]


def frequencies_of(module: Any, fresh: Any) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Names of a module's buffers of frequencies, what is in them, and in those of a new one, which may have none."""
    names = [name for name, buffer in module._buffers.items() if name.endswith(FREQUENCIES) and buffer is not None]
    live = {name: module._buffers[name] for name in names if not (has_copy(name, module) and follows_length(module))}
    if any(buffer.is_meta for buffer in live.values()):
        return
    yield from ((name, buffer.detach().cpu(), fresh._buffers.get(name)) for name, buffer in live.items())


def has_copy(name: str, module: Any) -> bool:
    """Whether a module keeps the frequencies of a buffer in another one, which does not follow the length."""
    return name.removesuffix(FREQUENCIES) + UNSCALED + FREQUENCIES in module._buffers


def follows_length(module: Any) -> bool:
    """Whether a module's frequencies change with the length of what it has read."""
    kinds = getattr(module, "rope_type", None)
    kinds = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any(kind and ("dynamic" in kind or "longrope" in kind) for kind in kinds)


def alike(live: Tensor, fresh: Tensor) -> bool:
    """Whether frequencies are equal up to rounding, or equal once both are cast to half precision."""
    live, fresh = live.double(), fresh.to(live.dtype).double()  # whatever a model was cast to
    if bool(((live - fresh).abs() <= ROUNDING * fresh.abs()).all()):
        return True
    return is_cast_of(live, fresh)
