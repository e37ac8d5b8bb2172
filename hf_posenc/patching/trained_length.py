"""The trained length that a patch counts from where the caller gives none: one rule for all of the package.

A model that is scaled already (Llama 3.1, gpt-oss) has two: what it was trained on before the scaling, and what it
reaches with it, its ``max_position_embeddings``. Schemes that keep the model's rotation, or stretch it further as
``"host+yarn"`` does, count from the second, and so do those that rotate nothing. Those that put a rotation of their own
in its place would count from the first, and are refused unless the caller says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_posenc.core.geometry import Geometry
from hf_posenc.patches.validate_adapter import checked_trained_length, geometry_of
from hf_posenc.patching.layer_schemes import layout_of
from hf_posenc.patching.state import base_model_of
from hf_posenc.schemes.build import replaces_rotation

if TYPE_CHECKING:
    from hf_posenc.patches.adapter import Adapter
    from hf_posenc.schemes.spec import Layout, SchemeSpec


def trained_length_of_patch(
    adapter: Adapter, config: Any, scheme: SchemeSpec | None, options: Mapping[str, Any] | None = None
) -> int:
    """The trained length that ``patch_model(model, scheme, **options)`` counts from.

    Args:
        adapter, config: of the model.
        scheme: as `patch_model` takes it; None for the model as it is, of which it is what that reaches.
        options: of `patch_model`, with lengths and layers among them.

    Raises:
        PosEncError: the scheme or an option is refused.
    """
    if scheme is None:
        return adapter.reach(config)
    own = {name: value for name, value in (options or {}).items() if name not in ("factor", "target_length")}
    layers, given = own.pop("layers", None), own.pop("trained_length", None)
    if given is not None:
        return given
    if adapter.scaled_already(config) is None:
        return checked_trained_length(adapter, config)
    geometry = unscaled_geometry(adapter, config)
    return trained_length_under(adapter, config, layout_of(scheme, own, layers, geometry), geometry)


def unscaled_geometry(adapter: Adapter, config: Any) -> Geometry:
    """The geometry of a model at its own trained length, with its lengths not yet decided."""
    trained = checked_trained_length(adapter, config)
    return geometry_of(adapter, config, trained_length=trained, target_length=trained)


def trained_length_under(adapter: Adapter, config: Any, chosen: Layout, geometry: Geometry) -> int:
    """The trained length under the schemes of a layout; see the top of this file.

    Args:
        adapter, config: of the model.
        chosen: the scheme of every layer.
        geometry: from `unscaled_geometry`.
    """
    if adapter.scaled_already(config) is None or overwrites_scaling(adapter, config, chosen, geometry):
        return geometry.trained_length
    return adapter.reach(config)


def overwrites_scaling(adapter: Adapter, config: Any, chosen: Layout, geometry: Geometry) -> bool:
    """Whether some layer gets a rotation in the place of one that is scaled already, so that ``trained_length`` must be
    given. The arguments are those of `trained_length_under`."""
    if adapter.scaled_already(config) is None:
        return False
    plans = [chosen.plan_of(layer, geometry.layers) for layer in chosen.representatives(geometry.layers)]
    return any(replaces_rotation(plan, geometry) for plan in plans)


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
