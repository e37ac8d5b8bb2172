"""The properties an encoding is wished to have, measured on the scheme that models run.

    from hf_posenc.insight.properties import measure
    table = measure(["sinusoidal", "rope", "alibi"])
    table["rope"]["relative"]                # Cell(holds=True, value=8e-08, says='…')

Every property is one function of a `Subject`, which has a scheme's codes and the logits of an attention layer around
it. Whether it is a code, a rotation, a bias or a remap is never asked by name: what it does is looked at.
"""

from __future__ import annotations

from hf_posenc.insight.properties.cell import Cell
from hf_posenc.insight.properties.measure import in_order, measure, measure_precision
from hf_posenc.insight.properties.precision import Rounded
from hf_posenc.insight.properties.registry import PROPERTIES, Property
from hf_posenc.insight.properties.target import Target, targets

__all__ = [
    "PROPERTIES",
    "Cell",
    "Property",
    "Rounded",
    "Target",
    "in_order",
    "measure",
    "measure_precision",
    "targets",
]
