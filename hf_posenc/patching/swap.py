"""Swap a model's classes, hooks and parameters, recording each change, and undo the recorded ones.

One thread at a time changes models, and none from within a forward pass of the model, such as from a hook. A forward
pass of another thread is neither seen nor waited for: it would compute some layers as they were and others as they are.
So patch a model before threads share it.

A patch belongs to a base model. Encoder and decoder of a model with both each get the scheme for their own geometry (an
encoder is not causal), with parameters, a proof of effect and a report of their own. The configuration of the whole
model says the scheme as those of its stacks do, so that its checkpoints carry it. Stacks that were patched one by one
may have different schemes; a configuration has no place for these, and such a model cannot be saved as a whole.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_stack
from typing import Any

from torch import nn

from hf_posenc.cache.provenance import ENTRY
from hf_posenc.core.torch_state import remove_hooks
from hf_posenc.errors import CannotCombine, ModelInUse
from hf_posenc.forward.current_forward import ATTENTION, ATTENTIONS, OWNER
from hf_posenc.forward.forward_hook import prepare_forward
from hf_posenc.patches.shared.rotary_host import keep_loader_name
from hf_posenc.patching import peft_sidecar
from hf_posenc.patching.atomic_save import check_saver, install_atomic_save, remove_atomic_save
from hf_posenc.patching.batching import remove_batching_check
from hf_posenc.patching.float32 import restore_dtype
from hf_posenc.patching.offloading import change_class, computing_device, offload_beside, offloads_of
from hf_posenc.patching.patched_config import check_unchanged, restore_config, write_outer_config
from hf_posenc.patching.state import STASH, Patch, base_model_of, outer_model, parts_of, patch_of
from hf_posenc.patching.text_limits import restore_limits

UNSPLIT_MODULES = "_no_split_modules"  # of a transformers model: names of classes


def swap(patch: Patch) -> None:
    """Give every layer its scheme and its patched class, and register the hooks; record the changes in ``patch``."""
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
    freeze(patch, out_of_use(patch))
    rename_unsplit_modules(patch)
    base.register_forward_pre_hook(prepare_forward, with_kwargs=True)
    base.register_state_dict_pre_hook(write_scheme_with_adapters)


def add_schemes(patch: Patch, attentions: Sequence[nn.Module]) -> None:
    """Make the schemes children: of the base model where all layers share one, else each of its attention module."""
    base, schemes = patch.base, patch.schemes
    dtype = next(weight.dtype for weight in base.parameters() if weight.is_floating_point())  # not of quantised ones
    shared = all(s is schemes[0] for s in schemes)
    offloads = offloads_of(patch.model)
    owners = dict.fromkeys(attentions[:1], base) if shared else dict(zip(attentions, attentions, strict=True))
    for (attention, owner), scheme in zip(owners.items(), schemes, strict=False):  # a shared one is added once
        device = computing_device(attention, offloads, around=base)
        if device.type != "meta":
            scheme.reset_parameters()  # in the order of the layers, so that a seed decides what is drawn
        set_scheme(owner, scheme.to(device, dtype).train(base.training))
        offload_beside(scheme, attention, offloads)


def set_scheme(owner: nn.Module, scheme: nn.Module | None) -> None:
    """Add the child ``posenc``, or remove it. A new dictionary: another thread may iterate over the old one."""
    others = {name: module for name, module in owner._modules.items() if name != "posenc"}
    owner.__dict__["_modules"] = others if scheme is None else {**others, "posenc": scheme}


def change_module_class(patch: Patch, module: nn.Module, cls: type[nn.Module]) -> None:
    """Change the class of a module, and record the old one."""
    patch.classes.append((module, type(module)))
    keep_loader_name(cls, type(module))
    change_class(module, cls)


def out_of_use(patch: Patch) -> list[nn.Parameter]:
    """Parameters of a base model that no layer reads any more: some may have a scheme that keeps what is there."""
    unread = [list(patch.adapter.frozen(patch.base, scheme)) for scheme in dict.fromkeys(patch.schemes)]
    everywhere = set.intersection(*({id(weight) for weight in weights} for weights in unread))
    return [weight for weight in unread[0] if id(weight) in everywhere]


def freeze(patch: Patch, weights: Iterable[nn.Parameter]) -> None:
    """Stop training ``weights`` of the base model."""
    wanted = {id(weight) for weight in weights if weight.requires_grad}
    for module in patch.base.modules():
        for name, weight in module.named_parameters(recurse=False):
            if id(weight) in wanted:
                weight.requires_grad_(False)
                patch.frozen.append((module, name))


def rename_unsplit_modules(patch: Patch) -> None:
    """Add the new classes to transformers' lists of modules that must not be split over devices."""
    renamed = {old.__name__: type(module).__name__ for module, old in patch.classes}
    for model in patch.model.modules():
        names = model.__dict__.get(UNSPLIT_MODULES)
        if names and renamed.keys() & set(names):
            left = {type(module).__name__ for module in model.modules()}
            patch.unsplit_modules.append((model, names))
            model.__dict__[UNSPLIT_MODULES] = {
                name for old in names for name in (old, renamed.get(old, old)) if name in left or old not in renamed
            }


def write_scheme_with_adapters(base: nn.Module, *_: Any) -> None:
    """State-dict pre-hook: saving a PEFT adapter asks for the parameters first; make it save the sidecar as well."""
    patch = base.__dict__.get(STASH)
    if patch is None:
        return
    for holder in (patch.model, patch.whole, *(module for module, _ in patch.configs)):
        if peft_configs := getattr(holder, "peft_config", None):  # where PEFT stores its configurations
            check_unchanged(patch)
            peft_sidecar.write_sidecar_on_save(patch.whole or base, peft_configs)
    check_saver(base)


def undo(patch: Patch) -> None:
    """Undo all changes recorded in ``patch``, which may be unfinished."""
    base, model = patch.base, patch.model
    owners = [base, *base.__dict__.get(ATTENTIONS, ())]
    for module, cls in reversed(patch.classes):
        change_class(module, cls)
        forget_attributes(module)
    for owner in owners:
        set_scheme(owner, None)
    restore_dtype(patch.in_float32)
    for module, name in patch.frozen:
        getattr(module, name).requires_grad_(True)
    for holder, names in patch.unsplit_modules:
        holder.__dict__[UNSPLIT_MODULES] = names
    remove_atomic_save(model)
    remove_batching_check(model)
    restore_config(patch)
    restore_limits(patch)
    remove_hooks(base._forward_pre_hooks, lambda hook: hook is prepare_forward, base._forward_pre_hooks_with_kwargs)
    remove_hooks(base._state_dict_pre_hooks, lambda hook: hook is write_scheme_with_adapters)
    forget_attributes(base)


def forget_attributes(module: nn.Module) -> None:
    """Remove everything that a patch has set on a module beside its class."""
    for name in [name for name in module.__dict__ if name.startswith("posenc_")]:
        module.__dict__.pop(name)


CALLS = ("_wrapped_call_impl", "forward")  # functions of a module on the stack of a thread that computes with it
_LOCK = threading.RLock()


@contextmanager
def changing(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Run the block, which is given the base models inside ``model``, while no other thread patches or unpatches.

    They are those of both stacks of an encoder–decoder, and else one.
    """
    bases = [base_model_of(part)[0] for part in parts_of(model)]
    parts = {id(module) for module in model.modules()}
    stack = (frame for frame, _ in walk_stack(sys._getframe()))
    if any(frame.f_code.co_name in CALLS and id(frame.f_locals.get("self")) in parts for frame in stack):
        raise ModelInUse(
            f"This thread is inside a forward pass of the {type(model).__name__} that it wants to patch or unpatch. "
            "Do that after the call has returned, not in a hook of the model."
        )
    with _LOCK:
        yield bases


def write_whole_config(model: nn.Module, bases: Sequence[nn.Module]) -> None:
    """Write the scheme of both stacks into a copy of the whole model's configuration."""
    outer: Any = outer_model(model)
    entry = vars(bases[0])[ENTRY]
    for base in bases:
        if vars(base)[ENTRY] != entry:
            raise CannotCombine(
                f"The stacks of this {type(outer).__name__} have different lengths or layers, so one scheme means "
                f"different things to them: {entry} and {vars(base)[ENTRY]}. Patch them one by one, "
                "model.get_encoder() and model.get_decoder()."
            )
        patch_of(base).whole = outer
    write_outer_config(patch_of(bases[0]), outer)
    install_atomic_save(outer)


def undo_all(model: nn.Module, bases: Sequence[nn.Module]) -> None:
    """Undo the patches of some base models of ``model``, and what its configuration says of them."""
    for base in bases:
        undo(patch_of(base))
    if (outer := outer_model(model)) is not None:
        remove_atomic_save(outer)
