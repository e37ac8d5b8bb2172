"""Read exact frequencies from a model's configuration and buffers, and find the axis of each rotated pair.

In models that place tokens on several axes (M-RoPE) the configuration gives the number of pairs per axis, but not
their order. Both known orders are tried on coordinates as in an image. The right order reproduces the model's outputs
when it is applied where patched attention will apply it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hf_posenc.core.geometry import HostRotary, Rotation, geometric
from hf_posenc.patches.general.blindness import LIMIT, TOKENS, deviation, outputs
from hf_posenc.patches.general.observation import AttentionObservation, Observation
from hf_posenc.patches.general.observer import Observer, inputs_of
from hf_posenc.patches.shared.rope_parameters import rotations
from hf_posenc.patches.shared.rotary_host import as_built
from hf_posenc.schemes.rotary.mrope import AXES, pair_axes

SECTION = "mrope_section"


def bases_of(config: Any) -> list[float]:
    """RoPE bases θ in a configuration, without repetitions; several if layer types have different ones."""
    stated = [one.get("rope_theta") for one in rotations(config).values()]
    return list(dict.fromkeys(float(base) for base in stated if base))


def base_of(frequencies: tuple[float, ...], stated: list[float]) -> float:
    """RoPE base θ of some frequencies: the only stated base, or the one nearest to the measured base."""
    if len(stated) == 1:
        return stated[0]
    moving = [one for one in frequencies if one]
    measured = (moving[1] / moving[0]) ** -len(frequencies) if len(moving) > 1 else 10_000.0
    return min(stated, key=lambda base: abs(base - measured), default=measured)


def stated_frequencies(model: Any, observer: Observer) -> list[tuple[float, ...]]:
    """Frequencies in the model's configuration and in the buffers of its rotary modules, the most exact first."""
    modules = [model.get_submodule(name) for name in observer.rotaries]
    sizes = {2 * buffer.numel() for one in modules for buffer in one.buffers()}
    exact = [geometric(base, dims) for base in bases_of(model.config) for dims in sorted(sizes)]
    sources = [one for module in modules for one in (as_built(module), module)]  # a cast has rounded the latter
    buffers = [buffer for one in sources if one is not None for buffer in one.buffers()]
    return list(dict.fromkeys(exact + [tuple(buffer.double().flatten().tolist()) for buffer in buffers]))


def as_host_rotary(model: Any, rotation: Rotation, head_dim: int) -> HostRotary:
    """The `HostRotary` of a measured rotation; the amplitude of fully rotated heads becomes a logit scale."""
    frequencies: Any = rotation.frequencies
    base = base_of(frequencies, bases_of(model.config))
    if rotation.dims < head_dim:
        return HostRotary(rotation, base)
    return HostRotary(replace(rotation, amplitude=1.0), base, rotation.amplitude**2)


def with_axes(model: Any, seen: Observation) -> Observation:
    """The observation with the axis of each rotated pair; unchanged for a single axis, or if no known order fits."""
    stated = (one.get(SECTION) for one in rotations(model.config).values())
    section = next((tuple(one) for one in stated if one), None)
    if section is None or len(section) != AXES:
        return seen
    positions = torch.arange(TOKENS)[None]
    places = torch.stack((positions // 4, positions % 4, positions * 2 % 7), dim=-1)
    call = inputs_of(model, positions) | {"position_ids": places.movedim(-1, 0)}
    expected = outputs(model, Observer(positions), call)
    for interleaved in (False, True):
        attentions = tuple(_with_pair_axes(one, pair_axes(section, interleaved)) for one in seen.attentions)
        restored = Observer(positions, silent=True, restored={one.name: one for one in attentions}, places=places)
        if deviation(outputs(model, restored, call), expected) <= LIMIT:
            return replace(seen, attentions=attentions)
    return seen


def _with_pair_axes(one: AttentionObservation, axes: tuple[int, ...]) -> AttentionObservation:
    rotary = one.kind.rotary
    if rotary is None or 2 * len(axes) != rotary.rotation.dims:
        return one
    return replace(one, kind=replace(one.kind, rotary=replace(rotary, axes=axes)))
