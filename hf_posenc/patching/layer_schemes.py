"""The scheme object of every layer of the layout that was asked for, and the trained length that a patch counts from.

A model that is scaled already (Llama 3.1, gpt-oss) has two trained lengths: what it was trained on before the scaling,
and what it reaches with it, its ``max_position_embeddings``. Schemes that keep the model's rotation, or stretch it
further as ``"host+yarn"`` does, count from the second, and so do those that rotate nothing. Those that put a rotation
of their own in its place would count from the first, and are refused unless the caller says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import CannotCombine
from hf_posenc.forward.forward_hook import moves_positions
from hf_posenc.patches.validate_adapter import checked_trained_length, geometry_of
from hf_posenc.patching.state import base_model_of
from hf_posenc.schemes.base import Scheme, implements
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
    """The scheme of every layer: by default, one that extends the context leaves layers alone that need no extension.

    Where no layer needs one, those that rotate queries and keys have it. Parts that extend nothing and leave the
    model's positions in place, as trained sinks do, are in all layers.

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
    others = [(cls, own) for cls, own in chosen.default.parts if not cls.record.zero_shot]
    extends = len(others) < len(chosen.default.parts) and not any(cls.replaces_host for cls, _ in others)
    if layers is not None or not chosen.uniform or not extends or not local:
        return chosen
    kept = Plan((*plan("host").parts, *others))
    return replace(chosen, layers={str(layer): kept for layer in local})


def build_layer_schemes(
    chosen: Layout, geometry: Geometry, adapter_name: str, own_positions: Callable[..., Scheme]
) -> list[Scheme]:
    """One scheme a layer; the same object in all of them where it may be shared.

    Raises:
        OptionOutOfRange: an option is refused.
        SchemeNotDefined: a scheme has no meaning on this model.
        CannotCombine: layers disagree on what is added to the embeddings, or on where tokens stand.
    """
    count = geometry.layers
    if chosen.uniform:
        first = build(chosen.default, geometry, adapter_name, partial(own_positions, layer=0))
        alike = all(geometry.of_layer(layer) is geometry for layer in range(count))
        reads_shapes = any(implements(first, hook) for hook in ("rotation", "row_rotation", "bias"))
        if first.shared and (alike or not reads_shapes):
            return [first] * count
    for cls, options in chosen.default.parts:
        if hasattr(cls, "layers_of"):  # a pattern of layers is the scheme of none of them, but its options are checked
            build(Plan(((cls, options),)), geometry, adapter_name)
    schemes: list[Scheme] = []
    alone: list[tuple[Plan, Geometry, Scheme]] = []  # without parameters, of which layers may have the same object
    for layer in range(count):
        own, kind = chosen.plan_of(layer, count), geometry.of_layer(layer)
        scheme = next((known for plan, its, known in alone if plan == own and its == kind), None)
        if scheme is None:
            scheme = build(own, kind, adapter_name, partial(own_positions, layer=layer))
            if scheme.shared and not any(True for _ in scheme.parameters()):
                alone.append((own, kind, scheme))
        schemes.append(scheme)
    _check_embeddings(schemes, geometry, uniform=chosen.uniform)
    _check_positions(schemes)
    return schemes


def _check_embeddings(schemes: list[Scheme], geometry: Geometry, *, uniform: bool) -> None:
    keeps_table = {(s.replaces_host and not s.keeps_table) for s in schemes}
    mixed = geometry.table is not None and len(keeps_table) > 1
    token = torch.zeros(1, 1, dtype=torch.long)
    if mixed or (not uniform and any(scheme.embed(token) is not None for scheme in schemes)):
        raise CannotCombine(
            "All layers share the code that is added to the embeddings, once, before the first layer. "
            "Use schemes of one kind."
        )


def _check_positions(schemes: list[Scheme]) -> None:
    moving = {tuple(part.shown_name for part in scheme.schemes if moves_positions(part)) for scheme in schemes}
    if len(moving) > 1:
        name = next(name for names in sorted(moving) for name in names)
        raise CannotCombine(
            f"All layers share the positions of tokens, which {name!r} decides once, before the first layer. "
            "Give it to all layers, also to those that keep their own positions by default, or to none."
        )


def trained_length_of_patch(
    adapter: Adapter, config: Any, scheme: SchemeSpec | None, options: Mapping[str, Any] | None = None
) -> int:
    """The trained length that ``patch_model(model, scheme, **options)`` counts from.

    Raises:
        PosEncError: the scheme or an option is refused.
    """
    if scheme is None:
        return adapter.reach(config)
    own = {name: value for name, value in (options or {}).items() if name not in ("factor", "target_length")}
    layers, given = own.pop("layers", None), own.pop("trained_length", None)
    if given is not None:
        return given
    geometry = unscaled_geometry(adapter, config)
    return trained_length_under(adapter, config, layout_of(scheme, own, layers, geometry), geometry)


def unscaled_geometry(adapter: Adapter, config: Any) -> Geometry:
    """The geometry of a model at its own trained length, with its lengths not yet decided."""
    trained = checked_trained_length(adapter, config)
    return geometry_of(adapter, config, trained_length=trained, target_length=trained)


def trained_length_under(adapter: Adapter, config: Any, chosen: Layout, geometry: Geometry) -> int:
    """The trained length under the schemes of a layout; see the top of this file."""
    overwritten = overwrites_scaling(adapter, config, chosen, geometry)
    return geometry.trained_length if overwritten else adapter.reach(config)


def overwrites_scaling(adapter: Adapter, config: Any, chosen: Layout, geometry: Geometry) -> bool:
    """Whether some layer gets a rotation in the place of one that is scaled already, so that ``trained_length`` must be
    given. The arguments are those of `trained_length_under`."""
    if adapter.scaled_already(config) is None:
        return False
    plans = [chosen.plan_of(layer, geometry.layers) for layer in chosen.representatives(geometry.layers)]
    return any(replaces_rotation(plan, geometry) for plan in plans)


def is_causal(model: nn.Module) -> bool:
    """Whether tokens do not see later ones: a decoder, and no encoder.

    Raises:
        UnsupportedModel: there is no adapter for the model.
    """
    base, adapter = base_model_of(model)
    return unscaled_geometry(adapter, base.config).causal
