"""The geometry of a live model, patched or not: its shapes, and whether it is a decoder."""

from __future__ import annotations

from torch import nn

from hf_posenc.core.geometry import Geometry
from hf_posenc.patching.state import base_model_of
from hf_posenc.patching.trained_length import unscaled_geometry


def model_geometry(model: nn.Module) -> Geometry:
    """The geometry of a model at its own trained length, as its adapter reads it from the configuration.

    Raises:
        UnsupportedModel: there is no adapter for the model.
    """
    base, adapter = base_model_of(model)
    return unscaled_geometry(adapter, base.config)


def is_causal(model: nn.Module) -> bool:
    """Whether tokens do not see later ones: a decoder, and no encoder.

    Raises:
        UnsupportedModel: there is no adapter for the model.
    """
    return model_geometry(model).causal
