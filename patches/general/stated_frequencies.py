"""The frequencies that a model states, in its configuration and in the buffers of its rotary modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from hf_posenc.core.geometry import HostRotary, geometric
from hf_posenc.patches.general.fit_rotation import RotationFit
from hf_posenc.patches.general.observer import Observer
from hf_posenc.patches.shared.rope_parameters import rotations


def bases_of(config: Any) -> list[float]:
    """RoPE's θ, of every kind of layer for which a configuration states one."""
    stated = [one.get("rope_theta") for one in rotations(config).values()]
    return list(dict.fromkeys(float(base) for base in stated if base))


def base_of(frequencies: tuple[float, ...], stated: list[float]) -> float:
    """RoPE's θ of some frequencies: the stated one, of several the one whose geometric series they are."""
    if len(stated) == 1:
        return stated[0]
    moving = [one for one in frequencies if one]
    measured = (moving[1] / moving[0]) ** -len(frequencies) if len(moving) > 1 else 10_000.0
    return min(stated, key=lambda base: abs(base - measured), default=measured)


def stated_frequencies(model: Any, observer: Observer) -> list[tuple[float, ...]]:
    """Frequencies that the model's configuration and the buffers of its rotary modules state, the most exact first."""
    sizes = {2 * buffer.numel() for name in observer.rotaries for buffer in model.get_submodule(name).buffers()}
    exact = [geometric(base, dims) for base in bases_of(model.config) for dims in sorted(sizes)]
    buffers = [
        tuple(buffer.double().flatten().tolist())
        for name in observer.rotaries
        for buffer in (*_fresh(model.get_submodule(name)), *model.get_submodule(name).buffers())
    ]
    return list(dict.fromkeys(exact + buffers))


def _fresh(rotary: Any) -> list[Tensor]:
    """Buffers of a rotary module made anew: a cast to half precision has rounded those it has."""
    try:
        return list(type(rotary)(rotary.config).buffers())
    except Exception:  # it has other arguments
        return []


def as_host_rotary(model: Any, fit: RotationFit, head_dim: int) -> HostRotary:
    """A measured rotation as schemes take it: what scales whole heads is a factor of logits."""
    rotation = fit.rotation
    frequencies: Any = rotation.frequencies
    base = base_of(frequencies, bases_of(model.config))
    if rotation.dims < head_dim:
        return HostRotary(rotation, base)
    return HostRotary(replace(rotation, amplitude=1.0), base, rotation.amplitude**2)
