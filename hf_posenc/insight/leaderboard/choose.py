"""Choose the schemes of a leaderboard: those that make sense on weights that were trained without them.

What is left out is listed with the reason: what needs training, what is not defined for the model, and what would
compute nothing else than the unpatched model does at these lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from hf_posenc.core.geometry import Geometry
from hf_posenc.core.record import SchemeRecord
from hf_posenc.errors import PosEncError
from hf_posenc.forward.current_forward import schemes_of_base
from hf_posenc.patching.expected_effect import differs_from_host
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.state import base_model_of
from hf_posenc.patching.trained_length import unscaled_geometry
from hf_posenc.schemes.entry import Entry
from hf_posenc.schemes.registry import list_schemes, scheme_class

TRAINING = "training needed: these weights were not trained with it"
RECIPE = "training recipe, which changes positions in training mode only"
REPLACES = "would put other positions in the place of those that the weights were trained with"
SAME = "the same as the unpatched model, at these lengths"
FROM_FOLDER = "hf_posenc.schemes."


@dataclass(frozen=True)
class Chosen:
    """Schemes to measure, and by name the reasons why others are left out."""

    entries: list[Entry]
    left_out: dict[str, str] = field(default_factory=dict)


def zero_shot_schemes(model: Any, longest: int) -> Chosen:
    """Choose, by their records and by what they compute, the registered schemes that can be used without training.

    Args:
        model: unpatched; it is patched and unpatched again.
        longest: length to reach, tokens.
    """
    base, adapter = base_model_of(model)
    geometry = unscaled_geometry(adapter, base.config)
    left_out = {record.name: reason for record in list_schemes() if (reason := reason_against(record, geometry))}
    entries = []
    for record in list_schemes():
        if record.name in left_out:
            continue
        if reason := refusal(model, record.name, longest):
            left_out[record.name] = reason
        else:
            entries.append(Entry(record.name, record.name))
    return Chosen(entries, left_out)


def reason_against(record: SchemeRecord, geometry: Geometry) -> str:
    """Why a scheme makes no sense on trained weights of this geometry; empty where it does.

    On a model with a position table, a scheme that extends this table with nothing new to learn is measured as well;
    its authors train it shortly.
    """
    if record.recipe:
        return RECIPE
    if record.unmet_needs(geometry):
        return f"defined for {record.defined_for}"
    if "table" in record.needs and record.learned is False:
        return ""
    if not record.zero_shot:
        return TRAINING
    return REPLACES if geometry.rotary is None and scheme_class(record.name).replaces_host else ""


def refusal(model: Any, scheme: str, longest: int) -> str:
    """Why a scheme is not measured on this model: it is refused, or has no effect; empty where it is measured."""
    base, adapter = base_model_of(model)
    geometry = unscaled_geometry(adapter, base.config)
    trained = geometry.trained_length
    positions = torch.tensor([sorted({0, 1, trained - 1, trained, longest - 1})])
    try:
        patch_model(model, scheme, target_length=longest)
    except PosEncError as error:
        return f"refused: {error}"
    try:
        schemes = schemes_of_base(base)
        # A table has no terms to compare, and a scheme that is measured on one extends it.
        same = geometry.relative and not any(differs_from_host(own, positions, own.geometry) for own in schemes)
    finally:
        unpatch_model(model)
    return SAME if same else ""


def kind_of(scheme: str | None) -> str:
    """What a scheme, or the first part of a composition, changes: the folder it is filed in, in words."""
    if scheme is None:
        return "unpatched"
    target = next(record.target for record in list_schemes() if scheme.split("+")[0] in (record.name, *record.aliases))
    folder = target.removeprefix(FROM_FOLDER).split(".")[0] if target.startswith(FROM_FOLDER) else "other"
    return folder.partition(":")[0].replace("_", " ")
