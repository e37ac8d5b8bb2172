"""Find which coordinate of a token turns each pair, in models that place tokens on several axes (M-RoPE).

The configuration states how many pairs belong to each axis, but not their order. Both known orders are tried on places
like those of an image: the right one gives the model's own outputs where our attention will apply it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hf_posenc.patches.general.blindness import LIMIT, TOKENS, deviation, outputs
from hf_posenc.patches.general.observation import AttentionObservation, Observation
from hf_posenc.patches.general.observer import Observer, inputs_of
from hf_posenc.patches.shared.rope_parameters import rotations
from hf_posenc.schemes.rotary.mrope import AXES, pair_axes

SECTION = "mrope_section"


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
