"""Patch, unpatch, describe: the whole path from a live model to one that knows position differently, and back.

adapter  where this model keeps position            geometry, trained length, attention modules
lengths  trained, target, factor                    any two give the third
scheme   what position is                           built once from geometry, lengths and options
report   swap, probe, prove; or undo and raise
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from hf_posenc.core.lengths import resolve_lengths
from hf_posenc.core.lock import patch_lock
from hf_posenc.errors import (
    AlreadyPatched,
    CannotCombine,
    CheckpointMismatch,
    LengthContradiction,
)
from hf_posenc.patches.registry import adapter_class, adapter_names
from hf_posenc.patches.validate_heads import check_heads
from hf_posenc.patching.config_changes import ConfigRecord
from hf_posenc.patching.continuous_batching import install_batching_check
from hf_posenc.patching.forward_gate import check_not_in_forward, exclusive_access
from hf_posenc.patching.preconditions.host import check_existing_scaling, check_foreign_forward, check_layer_count
from hf_posenc.patching.preconditions.host_config import check_complete, check_positions
from hf_posenc.patching.preconditions.memory import check_parameter_memory
from hf_posenc.patching.preconditions.weights import check_finite, check_floating
from hf_posenc.patching.preconditions.wrappers import (
    check_reducer,
    check_single_model,
    check_unsharded,
    explain_run_errors,
)
from hf_posenc.patching.proof import EffectProbe, Proof, evaluation_mode
from hf_posenc.patching.report import PatchReport
from hf_posenc.patching.state import Patch, base_model_of, describe, patch_of
from hf_posenc.patching.stored.atomic_save import install_atomic_save
from hf_posenc.patching.stored.config_guard import SCHEME_KEY
from hf_posenc.patching.swap import STASH, swap, undo, write_config
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.build import build
from hf_posenc.schemes.spec import Layout, Plan, SchemeSpec, layout

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry
    from hf_posenc.patches.adapter import Adapter

LENGTH_ALIASES = {
    "original_max": "trained_length",
    "pretraining_length": "trained_length",
    "train_length": "trained_length",
    "max_len": "target_length",
    "target": "target_length",
}
M = TypeVar("M", bound=nn.Module)


def patch_model(
    model: M,
    scheme: SchemeSpec,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    trained_length: int | None = None,
    layers: Mapping[int | str, SchemeSpec] | None = None,
    **options: Any,
) -> M:
    """Replace the positional machinery of a live model.

    Args:
        model: a Llama, GPT-2 or BERT model with any head, or a PEFT model around one.
        scheme: a name (``hf-posenc list``), a composition (``"yarn+logn"`` or a list), or a `Scheme` subclass.
        factor: target length over trained length, at least 1; the target is rounded to whole tokens.
        target_length: tokens the model should reach; give this or ``factor``.
        trained_length: what the weights saw, where the configuration does not say it.
        layers: schemes of single layers: number or slice (``"3::4"``) to scheme; the others, and all where
            there are none, get ``scheme``.
        **options: of the scheme; ``hf-posenc info NAME`` lists them.

    Returns:
        The same object. `describe` tells what was done, `unpatch_model` undoes it.

    Raises:
        PosEncError: one subclass a cause, see `hf_posenc.errors`; the model is then as it was.

    Threads that compute with the model finish on it as it was, and new forward passes wait for the patch.
    """
    base, adapter = base_model_of(model)
    check_not_in_forward(model, base)
    lengths = {"factor": factor, "trained_length": trained_length, "target_length": target_length}
    with patch_lock(base):
        _patch(model, base, adapter, scheme, lengths, layers, options)
    return model


def _patch(
    model: nn.Module,
    base: nn.Module,
    adapter: Adapter,
    scheme: SchemeSpec,
    asked: Mapping[str, Any],
    layers: Mapping[int | str, SchemeSpec] | None,
    options: dict[str, Any],
) -> None:
    """`patch_model`, while no other thread patches this model. What takes long comes before forward passes wait."""
    if STASH in base.__dict__:
        raise AlreadyPatched(
            f"This model carries scheme {describe(base).scheme!r} already. Call unpatch_model(model) first, "
            'or compose them: scheme="one+other".'
        )
    config: Any = base.config
    if getattr(config, SCHEME_KEY, None) is not None:
        raise CheckpointMismatch(
            "This checkpoint carries a scheme, but was loaded without it, so that its learned positions are lost. "
            "Load it with hf_posenc.from_pretrained, or call hf_posenc.enable_auto() first."
        )
    check_single_model(
        model, base, [cls.base_class for name in adapter_names() if (cls := adapter_class(name)) is not None]
    )
    check_unsharded(model)
    check_positions(vars(config), f"this {type(base).__name__}")
    check_complete(vars(config), f"this {type(base).__name__}")
    check_floating(model)
    check_finite(model)
    given = _lengths(options, trained_length=asked["trained_length"], target_length=asked["target_length"])
    lengths = resolve_lengths(host=adapter.trained_length(config), factor=asked["factor"], **given)
    geometry = adapter.geometry(config, trained_length=lengths.trained, target_length=lengths.target)
    chosen = layout(scheme, options, layers, geometry.layers)
    for one in (chosen.default, *chosen.layers.values()):
        check_parameter_memory(one, geometry)
    schemes = _schemes(chosen, geometry, adapter)
    check_existing_scaling(adapter, config, schemes, told=given["trained_length"] is not None)
    check_layer_count(adapter, base, geometry)
    check_foreign_forward(adapter, base, schemes[0])
    check_reducer(model, (p for s in schemes for p in s.parameters()), adapter.frozen(base, schemes[0]))
    with exclusive_access(model, base):
        _install(model, base, adapter, geometry, chosen, schemes)


def _install(
    model: nn.Module, base: nn.Module, adapter: Adapter, geometry: Geometry, chosen: Layout, schemes: list[Scheme]
) -> None:
    """Swap, probe, prove; or undo and raise."""
    with explain_run_errors(base):
        probe = EffectProbe(adapter, base, geometry, chosen.representatives(geometry.layers))
    patch = Patch(whole=model)
    try:
        swap(patch, adapter, base, schemes)
        with evaluation_mode(base):
            check_heads(base, geometry)
        write_config(patch, model, base, chosen, geometry)
        patch.record = ConfigRecord.of(base, adapter, geometry)
        proof = probe.verdict()
    except BaseException:
        undo(base, patch)
        raise
    patch.report = _report(patch, base, chosen, geometry, proof)
    base.__dict__[STASH] = patch
    install_atomic_save(model)
    install_batching_check(model)


def unpatch_model(model: M) -> M:
    """Undo `patch_model`: classes, hooks, parameters and configuration are as before, logits bit-equal.

    Raises:
        NotPatched: there is nothing to undo.
        ModelInUse: a forward pass of this thread, or one of another that does not end, computes with the model.
    """
    base, _ = base_model_of(model)
    check_not_in_forward(model, base)
    with patch_lock(base):
        patch = patch_of(base)
        with exclusive_access(model, base):
            undo(base, patch)
    return model


def _lengths(options: dict[str, Any], **given: int | None) -> dict[str, int | None]:
    """The lengths given, those among ``options`` under the names other papers use included and taken out of them."""
    for alias in sorted(LENGTH_ALIASES.keys() & options.keys()):
        name = LENGTH_ALIASES[alias]
        if given[name] is not None:
            raise LengthContradiction(f"{alias} is another name of {name}, and both are given. Give one of the two.")
        given[name] = options.pop(alias)
    return given


def _schemes(chosen: Layout, geometry: Geometry, adapter: Adapter) -> list[Scheme]:
    """One scheme a layer; the same object in all of them where it may be shared."""
    if chosen.uniform:
        first = build(chosen.default, geometry, adapter.name)
        if first.shared:
            return [first] * geometry.layers
    for cls, options in chosen.default.parts:
        if hasattr(cls, "layers_of"):  # no layer has a pattern of layers as its scheme, but it is refused like one
            build(Plan(((cls, options),)), geometry, adapter.name)
    count = geometry.layers
    schemes = [build(chosen.plan_of(layer, count), geometry, adapter.name) for layer in range(count)]
    tables = {(s.replaces_host and not s.keeps_table) for s in schemes}
    mixed = geometry.table is not None and len(tables) > 1
    if mixed or (not chosen.uniform and any(_adds_code(s) for s in schemes)):
        raise CannotCombine(
            "Layers cannot disagree on what is added to the embeddings, which happens once, before all of them. "
            "Use schemes of one kind."
        )
    return schemes


def _adds_code(scheme: Scheme) -> bool:
    return scheme.embed(torch.zeros(1, 1, dtype=torch.long)) is not None


def _report(patch: Patch, base: nn.Module, chosen: Layout, geometry: Geometry, proof: Proof) -> PatchReport:
    touched: dict[str, int] = {}
    for module, _ in patch.classes:
        name = type(module).__name__
        touched[name] = touched.get(name, 0) + 1
    added = sum(p.numel() for name, p in base.named_parameters() if "posenc." in name)
    return PatchReport(
        scheme=chosen.default.name,
        model=type(base).__name__,
        trained_length=geometry.trained_length,
        target_length=geometry.target_length,
        touched=touched,
        parameters_added=added,
        parameters_frozen=sum(getattr(module, name).numel() for module, name in patch.frozen),
        proof=proof,
        layers={key: plan.name for key, plan in chosen.layers.items()},
    )
