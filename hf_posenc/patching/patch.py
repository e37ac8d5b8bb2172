"""Patch a loaded model with a scheme, prove that the patch has an effect, and undo it.

model       find the base model and its adapter, refuse what cannot be patched
lengths     trained, target, factor: any two give the third
schemes     one for each layer, built from geometry, lengths and options
swap        classes, hooks, parameters and configuration
proof       run a layer before and after; keep the patch, or roll back and raise
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

from torch import nn

from hf_posenc.core.lazy import explained_imports
from hf_posenc.core.lengths import resolve_lengths
from hf_posenc.core.tested_versions import beyond_tested
from hf_posenc.core.torch_state import evaluation_mode, float32_by_default
from hf_posenc.errors import NothingStretched
from hf_posenc.patches.general.adapter import GeneralAdapter
from hf_posenc.patches.try_adapter import check_forward, check_heads, check_members
from hf_posenc.patching.atomic_save import install_atomic_save
from hf_posenc.patching.batching import install_batching_check
from hf_posenc.patching.float32 import keep_in_float32
from hf_posenc.patching.host_config import check_rotation
from hf_posenc.patching.layer_schemes import build_layer_schemes, layout_of, trained_length_under, unscaled_geometry
from hf_posenc.patching.patched_config import write_config
from hf_posenc.patching.preconditions import check_layer_indices, check_model, check_schemes
from hf_posenc.patching.proof import EffectProbe
from hf_posenc.patching.report import PatchReport
from hf_posenc.patching.state import STASH, Patch, base_model_of, is_patched, stacks_or_model
from hf_posenc.patching.swap import exclusive_change, swap, undo, undo_all, write_whole_config
from hf_posenc.patching.text_limits import raise_limits
from hf_posenc.schemes.base import Scheme, implements
from hf_posenc.schemes.memo import MEMOS
from hf_posenc.schemes.spec import SchemeSpec

M = TypeVar("M", bound=nn.Module)


def patch_model(
    model: M,
    scheme: SchemeSpec,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    trained_length: int | None = None,
    layers: Mapping[int | str, SchemeSpec] | Literal["all"] | None = None,
    **options: Any,
) -> M:
    """Replace the positional encoding of a loaded model.

    Args:
        model: a model of transformers with any head, or a PEFT model around one. `hf-posenc list --models --model M`
            says if it can be patched. An encoder–decoder gets the scheme in both stacks. To give them different
            ones, patch ``model.get_encoder()`` and ``model.get_decoder()``.
        scheme: a name (``hf-posenc list``), a composition (``"yarn+logn"`` or a list), or a `Scheme` subclass.
        factor: target length over trained length, at least 1; the target is rounded to whole tokens.
        target_length: tokens the model should reach; give this or ``factor``.
        trained_length: tokens the weights were trained on, if the configuration does not say it. If the model is
            scaled already, the default is the length it reaches. A scheme that replaces the scaled rotation then
            needs this argument.
        layers: maps a layer number or slice (``"3::4"``) to the scheme of these layers. All others get ``scheme``.
            By default a scheme that extends the context leaves out layers with a window or without a rotation;
            ``"all"`` includes them.
        **options: options of the scheme; ``hf-posenc info NAME`` lists them.

    Returns:
        The same object. `describe` reports the patch, `unpatch_model` undoes it.

    Raises:
        PosEncError: each cause has its own subclass in `hf_posenc.errors`. The model is left unchanged.

    Warns:
        UntestedVersion: transformers is newer than the versions this package is tested with.
        NothingStretched: the scheme stretches the context, and has neither a factor nor a length.
        LimitKept: a `SentenceTransformer` cuts texts below the trained length, and still does.

    Patch before other threads use the model, because the patch does not wait for their forward passes.
    """
    with explained_imports(), float32_by_default(), exclusive_change(model) as bases:
        unpatched = [base for base in bases if STASH not in base.__dict__]
        try:
            for part in stacks_or_model(model):
                _patch(part, scheme, dict(options), layers, trained_length, target_length, factor)
            if len(bases) > 1:
                write_whole_config(model, bases)
        except BaseException:
            if newly_patched := [base for base in unpatched if STASH in base.__dict__]:
                undo_all(model, newly_patched)
            raise
        raise_limits(model)
    return model


def _patch(
    model: nn.Module,
    scheme: SchemeSpec,
    options: dict[str, Any],
    layers: Mapping[int | str, SchemeSpec] | Literal["all"] | None,
    trained_length: int | None,
    target_length: int | None,
    factor: float | None,
) -> None:
    """Patch a model with one base model; the arguments are those of `patch_model`."""
    base, adapter = base_model_of(model)
    check_model(model, base)
    beyond_tested("transformers")
    config: Any = base.config
    check_rotation(base, trained_length_given=trained_length is not None)
    geometry = unscaled_geometry(adapter, config)
    chosen = layout_of(scheme, options, layers, geometry)
    configured = trained_length_under(adapter, config, chosen, geometry)
    lengths = resolve_lengths(
        configured=configured, trained_length=trained_length, target_length=target_length, factor=factor
    )
    geometry = replace(geometry, trained_length=lengths.trained, target_length=lengths.target)
    schemes = build_layer_schemes(chosen, geometry, adapter.name, partial(adapter.own_positions, base))
    patch = Patch(model, base, adapter, geometry, chosen, schemes)
    check_schemes(patch, trained_length_given=trained_length is not None)
    report = _install(patch)
    if factor is None and target_length is None and report.proof.verdict == "identity":
        warn_of_no_stretch(report, schemes[0])


def warn_of_no_stretch(report: PatchReport, scheme: Scheme) -> None:
    """Warn if a scheme that stretches the context by a fixed factor was given no factor."""
    if any(part.stretches and not implements(part, "row_rotation") for part in scheme.schemes):
        warnings.warn(
            f"{report.scheme} was given no factor, so the context length of this {report.model} stays "
            f"{report.trained_length:,} tokens. Pass factor (--factor) or target_length (--target-length).",
            NothingStretched,
            stacklevel=4,
        )


def _install(patch: Patch) -> PatchReport:
    """Swap the classes and prove that outputs change. On any error, undo the patch and raise."""
    model, base, adapter = patch.model, patch.base, patch.adapter
    try:
        swap(patch)
        probe = EffectProbe(patch)
        check_members(adapter, base, patch.geometry)
        check_layer_indices(patch)
        with evaluation_mode(base):
            check_heads(base, patch.geometry)
        write_config(patch)
        if probe.runs_alone and not isinstance(adapter, GeneralAdapter):  # that one has run whole forward passes
            with evaluation_mode(base):
                check_forward(adapter, base)
        patch.finish(probe.verdict())
        base.__dict__[STASH] = patch
        if getattr(model, "peft_config", None):
            patch.in_float32 += keep_in_float32(model)
        install_atomic_save(model)
        install_batching_check(model)
    except BaseException:
        undo(patch)
        raise
    return patch.report


def unpatch_model(model: M) -> M:
    """Undo `patch_model`: restore classes, hooks, parameters and configuration. Logits are bit-equal to before.

    Raises:
        NotPatched: the model carries no scheme.
        ModelInUse: this thread is inside a forward pass of the model.
    """
    with exclusive_change(model) as bases:
        undo_all(model, [base for base in bases if STASH in base.__dict__] or bases)
    return model


@contextmanager
def rollback_on_error(model: nn.Module) -> Iterator[None]:
    """Restore every module of ``model`` if the block raises; see `snapshot`.

    Values of parameters are not copied: a block that writes into them must not fail afterwards.
    """
    restore = snapshot(model)
    try:
        yield
    except BaseException:
        restore()
        raise


def snapshot(model: nn.Module) -> Callable[[], None]:
    """Record the modules of ``model`` and return a function that restores them.

    It restores class, attributes, children, hooks, device and ``requires_grad``. Modules and parameters are the same
    objects again. The values of parameters stay as they are.
    """
    modules = [(module, type(module), _attributes(module)) for module in model.modules()]
    weights = [(weight, weight.requires_grad, weight.device) for weight in model.parameters()]
    without_gradient = [weight for weight in model.parameters() if weight.grad is None]

    def restore() -> None:
        for module, cls, attributes in modules:
            object.__setattr__(module, "__class__", cls)
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for weight in without_gradient:
            weight.grad = None
        for weight, requires_grad, device in weights:
            weight.requires_grad_(requires_grad)
            if weight.device != device and "meta" not in (weight.device.type, device.type):
                weight.data = weight.data.to(device)  # buffers are back there: moving a model makes new buffer tensors

    return restore


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Attributes of a module without memos. Dictionaries and sets, which hold children and hooks, are copied."""
    return {
        name: value.copy() if isinstance(value, (dict, set)) and name != STASH else value
        for name, value in module.__dict__.items()
        if name not in MEMOS
    }


@contextmanager
def scheme_set_aside(model: nn.Module) -> Iterator[None]:
    """Run the block on the unpatched model, and restore its scheme with all learned parameters afterwards.

    The block may patch the model. Such a patch is undone at the end of the block.

    Raises:
        ModelInUse: this thread is inside a forward pass of the model.
    """
    restore = snapshot(model) if is_patched(model) else None
    if restore is not None:
        unpatch_model(model)
    try:
        yield
    finally:
        if is_patched(model):
            unpatch_model(model)
        if restore is not None:
            restore()
