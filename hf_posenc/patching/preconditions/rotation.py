"""Refuse models whose rotary modules hold other frequencies than their configuration gives them.

What a patch keeps of a rotation, and what it stretches, is computed from the configuration; frequencies that were
changed on the live model would be lost without a word.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.errors import ForeignPatch
from hf_posenc.patches.rotary_host import is_cast_of

ROUNDING = 1e-5  # relative
FREQUENCIES = "inv_freq"  # how names of such buffers end
UNSCALED = "original_"  # how the name of what does not follow the length begins


def changed_frequencies(base: nn.Module) -> str | None:
    """The name of a buffer whose frequencies are not those of a module made from the same configuration; None for none.

    It is found before a patch replaces classes, and refused after widths and data types were checked, which explain
    other frequencies better.
    """
    for name, module in base.named_modules():
        for buffer, live, fresh in frequencies_of(module):
            if live.shape != fresh.shape or not alike(live, fresh):
                return f"{name}.{buffer}"
    return None


def refuse_changed_frequencies(base: nn.Module, changed: str | None) -> None:
    """Refuse what `changed_frequencies` has found.

    Raises:
        ForeignPatch: it has found something.
    """
    if changed is not None:
        raise ForeignPatch(
            f"{changed} of this {type(base).__name__} was changed after the model was built and differs from its "
            "configuration, from which a patch computes it. Set rope_parameters in the configuration instead, and load "
            "the model with that."
        )


def frequencies_of(module: nn.Module) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Names of a module's buffers of frequencies, what is in them, and what would be in those of a new one."""
    names = [name for name, buffer in module._buffers.items() if name.endswith(FREQUENCIES) and buffer is not None]
    follows = [name for name in names if UNSCALED + name in module._buffers and follows_length(module)]
    live: dict[str, Any] = {name: module._buffers[name] for name in names if name not in follows}
    if not live or any(buffer.is_meta for buffer in live.values()) or "config" not in vars(module):
        return
    if list(inspect.signature(type(module).__init__).parameters)[1:2] != ["config"]:
        return  # nothing says how it was made
    with torch.device("cpu"):
        fresh: Any = type(module)(module.config)
    yield from ((name, buffer.detach().cpu(), fresh._buffers[name]) for name, buffer in live.items())


def follows_length(module: Any) -> bool:
    """Whether a module's frequencies change with the length of what it has read."""
    kinds = getattr(module, "rope_type", None)
    kinds = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any(kind and ("dynamic" in kind or "longrope" in kind) for kind in kinds)


def alike(live: Tensor, fresh: Tensor) -> bool:
    """Whether frequencies are equal up to rounding, or equal once both are cast to half precision."""
    live, fresh = live.double(), fresh.double()
    if bool(((live - fresh).abs() <= ROUNDING * fresh.abs()).all()):
        return True
    return is_cast_of(live, fresh)
