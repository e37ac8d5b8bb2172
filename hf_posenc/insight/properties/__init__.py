"""Properties of positional encodings, measured on the schemes that models run.

    from hf_posenc.insight.properties import measure
    table = measure(["sinusoidal", "rope", "alibi"])
    table["rope"]["relative"]                # PropertyValue(holds=True, value=8e-08, explanation='…')

Every property is one function of a `PropertyTarget`, which provides a scheme's embeddings and the logits of an
attention layer with that scheme. Properties are measured from outputs; none depends on the name or the kind of a
scheme.
"""

from __future__ import annotations

from hf_posenc.insight.properties.cell import PropertyValue
from hf_posenc.insight.properties.measure import PROPERTIES, Property, measure
from hf_posenc.insight.properties.target import PropertyTarget, targets

__all__ = ["PROPERTIES", "Property", "PropertyTarget", "PropertyValue", "measure", "targets"]
