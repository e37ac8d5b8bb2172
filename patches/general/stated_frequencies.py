"""What a model states of its rotation: frequencies in its configuration and buffers, and the axes of its pairs.

In models that place tokens on several axes (M-RoPE) the configuration states how many pairs belong to each axis, but
not their order. Both known orders are tried on places like those of an image: the right one gives the model's own
outputs where our attention will apply it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hf_posenc.core.geometry import HostRotary, geometric
from hf_posenc.patches.general.blindness import LIMIT, TOKENS, deviation, outputs
from hf_posenc.patches.general.fit_rotation import RotationFit
from hf_posenc.patches.general.observation import AttentionObservation, Observation
from hf_posenc.patches.general.observer import Observer, inputs_of
from hf_posenc.patches.shared.rope_parameters import rotations
from hf_posenc.patches.shared.rotary_host import as_built
from hf_posenc.schemes.rotary.mrope import AXES, pair_axes

SECTION = "mrope_section"


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
    modules = [model.get_submodule(name) for name in observer.rotaries]
    sizes = {2 * buffer.numel() for one in modules for buffer in one.buffers()}
    exact = [geometric(base, dims) for base in bases_of(model.config) for dims in sorted(sizes)]
    fresh = [(as_built(one), one) for one in modules]  # a cast to half precision has rounded what they hold
    held = [buffer for pair in fresh for one in pair if one is not None for buffer in one.buffers()]
    buffers = [tuple(buffer.double().flatten().tolist()) for buffer in held]
    return list(dict.fromkeys(exact + buffers))


def as_host_rotary(model: Any, fit: RotationFit, head_dim: int) -> HostRotary:
    """A measured rotation as schemes take it: what scales whole heads is a factor of logits."""
    rotation = fit.rotation
    frequencies: Any = rotation.frequencies
    base = base_of(frequencies, bases_of(model.config))
    if rotation.dims < head_dim:
        return HostRotary(rotation, base)
    return HostRotary(replace(rotation, amplitude=1.0), base, rotation.amplitude**2)


def with_axes(model: Any, seen: Observation) -> Observation:
    """The observation with the coordinate that turns each pair; as it is where there is one, or none that is found."""
    stated = (one.get(SECTION) for one in rotations(model.config).values())
    section = next((tuple(one) for one in stated if one), None)
    if section is None or len(section) != AXES:
        return seen
    positions = torch.arange(TOKENS)[None]
    places = torch.stack((positions // 4, positions % 4, positions * 2 % 7), dim=-1)
    call = inputs_of(model, positions) | {"position_ids": places.movedim(-1, 0)}
    stock = outputs(model, Observer(positions), call)
    for interleaved in (False, True):
        attentions = tuple(_turned_by(one, pair_axes(section, interleaved)) for one in seen.attentions)
        restored = Observer(positions, silent=True, restored={one.name: one for one in attentions}, places=places)
        if deviation(outputs(model, restored, call), stock) <= LIMIT:
            return replace(seen, attentions=attentions)
    return seen


def _turned_by(one: AttentionObservation, axes: tuple[int, ...]) -> AttentionObservation:
    rotary = one.kind.rotary
    if rotary is None or 2 * len(axes) != rotary.rotation.dims:
        return one
    return replace(one, kind=replace(one.kind, rotary=replace(rotary, axes=axes)))
