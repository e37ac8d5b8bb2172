"""The geometry of a family of models, from the default configuration of its class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import CONFIG_MAPPING

from hf_posenc.errors import PosEncError, UnsupportedModel, nearest, shown
from hf_posenc.patches.general.adapter import adapter_of_configuration
from hf_posenc.patches.registry import adapter_class

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry


def default_geometry(model_type: str) -> Geometry:
    """The geometry of a model of some type with the default configuration of its class, at its trained length.

    Raises:
        UnsupportedModel: transformers does not know the type, or such a model cannot be patched or built.
    """
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModel(
            f"transformers knows no model type {shown(model_type)}.{nearest(model_type, CONFIG_MAPPING)} "
            "Choose another, such as 'llama'."
        )
    own = adapter_class(model_type)
    try:
        config = CONFIG_MAPPING[model_type]()
        adapter = adapter_of_configuration(config) if own is None else own()
    except PosEncError:
        raise
    except Exception as error:  # whatever a class says of its own default configuration
        raise UnsupportedModel(
            f"The default configuration of {model_type!r} builds no model ({type(error).__name__}: {error}). Look at a "
            "checkpoint: hf-posenc list --models --model NAME."
        ) from error
    if adapter is None:
        raise UnsupportedModel(
            f"A model of the type {model_type!r} is neither a decoder nor an encoder of text. "
            "Choose another of the documentation's table of families."
        )
    length = adapter.trained_length(config)
    return adapter.geometry(config, trained_length=length, target_length=length)
