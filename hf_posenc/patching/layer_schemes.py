"""Build the scheme object of every layer, and decide the trained length that the factor of a patch multiplies.

A model that is scaled already (Llama 3.1, gpt-oss) has two trained lengths: the length before the scaling, and the
scaled one, its ``max_position_embeddings``. The scaled length counts for schemes that rotate nothing, keep the model's
rotation, or stretch it further (``"host+yarn"``). Schemes with a rotation of their own would need the length before
the scaling. They are refused unless the caller passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import CannotCombine, OptionOutOfRange
from hf_posenc.forward.stages import moves_positions
from hf_posenc.patches.validate_adapter import checked_trained_length, geometry_of
from hf_posenc.patching.state import base_model_of
from hf_posenc.schemes.base import POSITION_HOOKS, Scheme, implements
from hf_posenc.schemes.build import build, replaces_rotation
from hf_posenc.schemes.spec import Layout, Plan, SchemeSpec, layout, plan

if TYPE_CHECKING:
    from hf_posenc.patches.adapter import Adapter


def layout_of(
    spec: SchemeSpec,
    options: Mapping[str, Any],
    layers: Mapping[int | str, SchemeSpec] | Literal["all"] | None,
    geometry: Geometry,
) -> Layout:
    """The scheme of every layer. By default, a scheme that extends the context leaves out layers that do not need it.

    These have a window or no rotation. If that is true of all layers, only those without a rotation are left out.
    Parts that extend nothing and keep the model's positions, such as trained sinks, are in all layers.

    Raises:
        UnknownScheme, UnknownOption, OptionOutOfRange, CannotCombine: see `hf_posenc.schemes.spec.layout`.
    """
    if layers == "all":
        return layout(spec, options, None, geometry.layers)
    chosen = layout(spec, options, layers, geometry.layers)
    every = range(geometry.layers)
    local = [layer for layer in every if geometry.is_local(layer)]
    if len(local) == geometry.layers:
        local = [layer for layer in every if geometry.is_unrotated(layer)]
    trained_parts = [(cls, own) for cls, own in chosen.default.parts if not cls.record.zero_shot]
    extends = len(trained_parts) < len(chosen.default.parts) and not any(cls.replaces_host for cls, _ in trained_parts)
    if layers is not None or not chosen.uniform or not extends or not local:
        return chosen
    unextended = Plan((*plan("host").parts, *trained_parts))
    return replace(chosen, layers={str(layer): unextended for layer in local})


def build_layer_schemes(
    chosen: Layout, geometry: Geometry, adapter_name: str, own_positions: Callable[..., Scheme]
) -> list[Scheme]:
    """The scheme object of each layer. Layers share one object if the scheme allows it.

    Raises:
        OptionOutOfRange: an option is refused.
        SchemeNotDefined: a scheme has no meaning on this model.
        CannotCombine: layers disagree on the codes added to the embeddings, or on the positions of tokens; or no layer
            reads positions that a scheme changes.
    """
    count = geometry.layers
    if chosen.uniform:
        first = build(chosen.default, geometry, adapter_name, partial(own_positions, layer=0))
        alike = all(geometry.of_layer(layer) is geometry for layer in range(count))
        reads_shapes = any(implements(first, hook) for hook in ("rotation", "row_rotation", "bias"))
        if first.shared and (alike or not reads_shapes):
            _check_positions([first], stored=chosen.default.stored)
            return [first] * count
    for cls, options in chosen.default.parts:
        if hasattr(cls, "layers_of"):  # a layer pattern: no layer has it as its scheme, but its options are checked
            build(Plan(((cls, options),)), geometry, adapter_name)
    schemes: list[Scheme] = []
    reusable: list[tuple[Plan, Geometry, Scheme]] = []  # schemes without parameters, which layers may share
    for layer in range(count):
        own, kind = chosen.plan_of(layer, count), geometry.of_layer(layer)
        scheme = next((built for plan, of, built in reusable if plan == own and of == kind), None)
        if scheme is None:
            scheme = build(own, kind, adapter_name, partial(own_positions, layer=layer))
            for part in scheme.schemes:
                part.keep_layer(layer)
            if scheme.shared and not any(True for _ in scheme.parameters()):
                reusable.append((own, kind, scheme))
        schemes.append(scheme)
    if not chosen.default.stored:
        _check_sharing(schemes)
    _check_embeddings(schemes, geometry, uniform=chosen.uniform)
    _check_positions(schemes, stored=chosen.default.stored)
    return schemes


def _check_sharing(schemes: list[Scheme]) -> None:
    for part in (part for scheme in schemes for part in scheme.schemes):
        option = part.sharing_option
        if part.shared and option in part.changed_options:
            raise OptionOutOfRange(
                f"{option}={part.changed_options[option]} of {part.record.name!r} cannot take effect, because each "
                "layer has a scheme of its own in this model or composition. Leave it out."
            )


def _check_embeddings(schemes: list[Scheme], geometry: Geometry, *, uniform: bool) -> None:
    drops_table = {(s.replaces_host and not s.keeps_table) for s in schemes}
    mixed = geometry.table is not None and len(drops_table) > 1
    token = torch.zeros(1, 1, dtype=torch.long)
    if mixed or (not uniform and any(scheme.embed(token) is not None for scheme in schemes)):
        raise CannotCombine(
            "All layers share the code that is added to the embeddings, once, before the first layer. "
            "Use schemes of one kind."
        )


def _check_positions(schemes: list[Scheme], *, stored: bool) -> None:
    moving = {tuple(part.shown_name for part in scheme.schemes if moves_positions(part)) for scheme in schemes}
    if len(moving) > 1:
        name = next(name for names in sorted(moving) for name in names)
        raise CannotCombine(
            f"All layers share the positions of tokens, which {name!r} decides once, before the first layer. "
            "Give it to all layers, including those that keep their own positions by default, or to none."
        )
    reads = any(implements(scheme, hook) for scheme in schemes for hook in POSITION_HOOKS)
    if any(moving) and not reads and not stored and all(scheme.replaces_host for scheme in schemes):
        raise CannotCombine(
            f"{next(iter(moving))[0]!r} changes the positions of tokens, and no other scheme here reads positions. "
            "Leave it out, or add a scheme that reads them, such as 'rope'."
        )


def trained_length_of_patch(
    adapter: Adapter, config: Any, scheme: SchemeSpec | None, options: Mapping[str, Any] | None = None
) -> int:
    """The trained length that ``patch_model(model, scheme, **options)`` multiplies by the factor.

    Raises:
        PosEncError: the scheme or an option is refused.
    """
    if scheme is None:
        return adapter.reach(config)
    scheme_options = {name: value for name, value in (options or {}).items() if name not in ("factor", "target_length")}
    layers, trained_length = scheme_options.pop("layers", None), scheme_options.pop("trained_length", None)
    if trained_length is not None:
        return trained_length
    geometry = unscaled_geometry(adapter, config)
    return trained_length_under(adapter, config, layout_of(scheme, scheme_options, layers, geometry), geometry)


def unscaled_geometry(adapter: Adapter, config: Any) -> Geometry:
    """The geometry of a model before the lengths of a patch are known: the target length is the trained length."""
    trained = checked_trained_length(adapter, config)
    return geometry_of(adapter, config, trained_length=trained, target_length=trained)


def trained_length_under(adapter: Adapter, config: Any, chosen: Layout, geometry: Geometry) -> int:
    """The trained length under the schemes of a layout; see the top of this file."""
    overwritten = overwrites_scaling(adapter, config, chosen, geometry)
    return geometry.trained_length if overwritten else adapter.reach(config)


def overwrites_scaling(adapter: Adapter, config: Any, chosen: Layout, geometry: Geometry) -> bool:
    """Whether a layer gets a new rotation in place of a scaled one. The caller must then pass ``trained_length``."""
    if adapter.scaled_already(config) is None:
        return False
    plans = [chosen.plan_of(layer, geometry.layers) for layer in chosen.representatives(geometry.layers)]
    return any(replaces_rotation(plan, geometry) for plan in plans)


def is_causal(model: nn.Module) -> bool:
    """Whether the model is a decoder, whose tokens do not see later ones.

    Raises:
        UnsupportedModel: no adapter fits the model.
    """
    base, adapter = base_model_of(model)
    return unscaled_geometry(adapter, base.config).causal
