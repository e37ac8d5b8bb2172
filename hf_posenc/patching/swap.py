"""Swap a model's classes, hooks and parameters, record each change, and undo the recorded changes.

Only one thread at a time changes models. A call from within a forward pass of the model, such as from a hook, is
refused. Forward passes of other threads are not detected: they would mix unpatched and patched layers. So patch a model
before threads share it.

A patch belongs to a base model. In an encoder–decoder, each stack gets the scheme for its own geometry, because an
encoder is not causal. Each has its own parameters, proof of effect and report. The configuration of the whole model
records the scheme too, so that its checkpoints carry it. Stacks that were patched one by one may have different
schemes. One configuration cannot record two schemes, so such a model cannot be saved as a whole.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_stack
from typing import Any

import torch
from torch import nn

from hf_posenc.cache.provenance import ENTRY
from hf_posenc.core.torch_state import remove_hooks
from hf_posenc.errors import CannotCombine, ModelInUse
from hf_posenc.forward.base_forward import own_base, patched_base
from hf_posenc.forward.current_forward import ATTENTION, ATTENTIONS, OWNER
from hf_posenc.patches.shared.rotary_host import keep_loader_name
from hf_posenc.patching import peft_sidecar
from hf_posenc.patching.atomic_save import check_saver, install_atomic_save, remove_atomic_save
from hf_posenc.patching.batching import remove_batching_check
from hf_posenc.patching.float32 import restore_dtype
from hf_posenc.patching.offloading import change_class, computing_device, offload_beside, offloads_of
from hf_posenc.patching.patched_config import check_unchanged, restore_config, write_outer_config
from hf_posenc.patching.state import STASH, Patch, base_model_of, outer_model, patch_of, stacks_or_model
from hf_posenc.patching.text_limits import restore_limits

UNSPLIT_MODULES = "_no_split_modules"  # attribute of a transformers model: names of classes


def swap(patch: Patch) -> None:
    """Give every layer its scheme, and every module its patched class; record the changes in ``patch``."""
    base, adapter, schemes = patch.base, patch.adapter, patch.schemes
    attentions = base.__dict__[ATTENTIONS] = list(adapter.attentions(base))
    add_schemes(patch, attentions)
    for attention in attentions:
        change_module_class(patch, attention, adapter.patched_class(attention))
        attention.__dict__[OWNER] = base
    for module, cls in adapter.swaps(base, schemes[0]):
        change_module_class(patch, module, cls)
        module.__dict__[ATTENTION] = attentions[0]
    for module, attributes in adapter.attributes(base):
        module.__dict__.update(attributes)
    freeze(patch, replaced_parameters(patch))
    rename_unsplit_modules(patch)
    change_class(base, patched_base(type(base)))  # type: ignore[arg-type]  # classes are hashable
    base.register_state_dict_pre_hook(write_scheme_with_adapters)


def add_schemes(patch: Patch, attentions: Sequence[nn.Module]) -> None:
    """Add a shared scheme as a child of the base model, or else each layer's scheme to its attention module."""
    base, schemes = patch.base, patch.schemes
    floats = (weight.dtype for weight in base.parameters() if weight.is_floating_point())  # skips quantised weights
    dtype = next(floats, torch.float32)  # of a complex model, which the probe will refuse
    shared = all(s is schemes[0] for s in schemes)
    offloads = offloads_of(patch.model)
    if shared:  # it is added once
        attentions, schemes = attentions[:1], schemes[:1]
    for attention, scheme in zip(attentions, schemes, strict=True):
        device = computing_device(attention, offloads, around=base)
        if device.type != "meta":
            scheme.reset_parameters()  # in the order of the layers, so that a seed fixes the initial values
        owner = base if shared else attention
        owner._modules["posenc"] = scheme.to(device, dtype).train(base.training)
        offload_beside(scheme, attention, offloads)


def change_module_class(patch: Patch, module: nn.Module, cls: type[nn.Module]) -> None:
    """Change the class of a module, and record the old one."""
    patch.classes.append((module, type(module)))
    keep_loader_name(cls, type(module))
    change_class(module, cls)


def replaced_parameters(patch: Patch) -> list[nn.Parameter]:
    """Parameters of the base model that the schemes of all layers replace, so that no layer reads them any more."""
    replaced = [list(patch.adapter.frozen(patch.base, scheme)) for scheme in dict.fromkeys(patch.schemes)]
    in_all_layers = set.intersection(*({id(weight) for weight in weights} for weights in replaced))
    return [weight for weight in replaced[0] if id(weight) in in_all_layers]


def freeze(patch: Patch, weights: Iterable[nn.Parameter]) -> None:
    """Clear ``requires_grad`` of those ``weights`` of the base model that are trained, and record them."""
    trained = {id(weight) for weight in weights if weight.requires_grad}
    for module in patch.base.modules():
        for name, weight in module.named_parameters(recurse=False):
            if id(weight) in trained:
                weight.requires_grad_(False)
                patch.frozen.append((module, name))


def rename_unsplit_modules(patch: Patch) -> None:
    """Add the new classes to transformers' lists of modules that must not be split over devices."""
    renamed = {old.__name__: type(module).__name__ for module, old in patch.classes}
    for model in patch.model.modules():
        names = model.__dict__.get(UNSPLIT_MODULES)
        if names and renamed.keys() & set(names):
            present = {type(module).__name__ for module in model.modules()}
            patch.unsplit_modules.append((model, names))
            new = {renamed[name] for name in names if name in renamed}
            absent = (renamed.keys() | new) - present
            model.__dict__[UNSPLIT_MODULES] = (set(names) | new) - absent


def write_scheme_with_adapters(base: nn.Module, *_: Any) -> None:
    """State-dict pre-hook: make PEFT save the sidecar too. PEFT reads the state dict before it saves an adapter."""
    patch = base.__dict__.get(STASH)
    if patch is None:
        return
    for holder in (patch.model, patch.encoder_decoder, *(module for module, _ in patch.configs)):
        if peft_configs := getattr(holder, "peft_config", None):  # where PEFT stores its configurations
            check_unchanged(patch)
            peft_sidecar.write_sidecar_on_save(patch.encoder_decoder or base, peft_configs)
    check_saver(base)


def undo(patch: Patch) -> None:
    """Undo all changes recorded in ``patch``, which may be unfinished."""
    base, model = patch.base, patch.model
    owners = [base, *base.__dict__.get(ATTENTIONS, ())]
    for module, cls in reversed(patch.classes):
        change_class(module, cls)
        forget_attributes(module)
    for owner in owners:
        owner._modules.pop("posenc", None)
    restore_dtype(patch.in_float32)
    for module, name in patch.frozen:
        getattr(module, name).requires_grad_(True)
    for holder, names in patch.unsplit_modules:
        holder.__dict__[UNSPLIT_MODULES] = names
    remove_atomic_save(model)
    remove_batching_check(model)
    change_class(base, own_base(type(base)))
    restore_config(patch)
    restore_limits(patch)
    remove_hooks(base._state_dict_pre_hooks, write_scheme_with_adapters)
    forget_attributes(base)


def forget_attributes(module: nn.Module) -> None:
    """Remove all attributes that a patch has set on a module."""
    for name in [name for name in module.__dict__ if name.startswith("posenc_")]:
        module.__dict__.pop(name)


CALLS = ("_wrapped_call_impl", "forward")  # functions on the stack of a thread that runs a forward pass of a module
_LOCK = threading.RLock()


@contextmanager
def exclusive_change(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Run the block while no other thread patches or unpatches a model.

    Yields the base models inside ``model``: two for an encoder–decoder, else one.

    Raises:
        ModelInUse: this thread is inside a forward pass of the model.
    """
    with _LOCK:
        bases = [base_model_of(part)[0] for part in stacks_or_model(model)]
        parts = {id(module) for module in model.modules()}
        stack = (frame for frame, _ in walk_stack(sys._getframe()))
        if any(frame.f_code.co_name in CALLS and id(frame.f_locals.get("self")) in parts for frame in stack):
            raise ModelInUse(
                f"A forward pass of this {type(model).__name__} is running in this thread, so it cannot be patched or "
                "unpatched now. Do that after the call has returned, not in a hook of the model."
            )
        yield bases


def write_whole_config(model: nn.Module, bases: Sequence[nn.Module]) -> None:
    """Write the scheme of both stacks into a copy of the encoder–decoder's configuration."""
    outer: Any = outer_model(model)
    entry = vars(bases[0])[ENTRY]
    for base in bases:
        if vars(base)[ENTRY] != entry:
            raise CannotCombine(
                f"The stacks of this {type(outer).__name__} have different lengths or layers, so one configuration "
                f"cannot record their schemes: {entry} and {vars(base)[ENTRY]}. Patch them one by one: "
                "model.get_encoder() and model.get_decoder()."
            )
        patch_of(base).encoder_decoder = outer
    write_outer_config(patch_of(bases[0]), outer)
    install_atomic_save(outer)


def undo_all(model: nn.Module, bases: Sequence[nn.Module]) -> None:
    """Undo the patches of the base models ``bases`` of ``model``, and restore the methods of ``model`` that save it."""
    for base in bases:
        undo(patch_of(base))
    if (outer := outer_model(model)) is not None:
        remove_atomic_save(outer)
