"""Refuse to save a model around a patched one whose checkpoint would not record the scheme.

A stack of an encoder–decoder, or the text part of a multimodal model, can be patched on its own, and has a
configuration of its own then. What holds it knows nothing of that: its ``save_pretrained`` would write a configuration
without the scheme beside weights that were trained with it. Saving reads the parameters of all parts, and a patched
part checks there which model's ``save_pretrained`` is running.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType
from typing import Any

from torch import nn

from hf_posenc.cache.provenance import ENTRY
from hf_posenc.errors import CheckpointMismatch
from hf_posenc.patching.in_forward import own_stack
from hf_posenc.patching.state import STASH, is_patched, stacks_of
from hf_posenc.patching.stored.config_guard import SCHEME_KEY
from hf_posenc.patching.stored.peft_sidecar import BASE_KEY

METHOD = "save_pretrained"


def check_saver(base: nn.Module) -> None:
    """Refuse the innermost ``save_pretrained`` that runs now, where what it saves does not say the scheme of ``base``.

    Raises:
        CheckpointMismatch: as it says.
    """
    saver = _saver(own_stack())
    if saver is None or not any(module is base for module in saver.modules()):
        return
    adapters = getattr(saver, "peft_config", None)
    if not adapters:
        check_said(saver)
    elif stacks_of(saver) and not all(BASE_KEY in vars(config) for config in adapters.values()):
        raise _lost(saver, base)


def check_said(model: nn.Module) -> None:
    """Refuse to save a model whose configuration does not say what each of its patched parts carries.

    Raises:
        CheckpointMismatch: as it says.
    """
    config: Any = getattr(model, "config", None)
    said = getattr(config, SCHEME_KEY, None)
    for module in model.modules():
        if STASH in module.__dict__ and said != vars(module)[ENTRY]:
            raise _lost(model, module)
    for name, stack in stacks_of(model).items():
        if said is not None and not is_patched(stack):
            raise CheckpointMismatch(
                f"The {name} of this {type(model).__name__} is not patched any more, but the configuration records a "
                "scheme for both stacks. Call unpatch_model(model), or patch both stacks, before saving."
            )


def _saver(frames: Iterable[FrameType]) -> nn.Module | None:
    callers = (frame.f_locals.get("self") for frame in frames if frame.f_code.co_name == METHOD)
    return next((one for one in callers if isinstance(one, nn.Module)), None)


def _lost(model: nn.Module, part: nn.Module) -> CheckpointMismatch:
    together = ", or patch both stacks at once: patch_model(model, scheme)" if stacks_of(model) else ""
    return CheckpointMismatch(
        f"A {type(part).__name__} inside this {type(model).__name__} is patched, but the configuration that is being "
        f"saved does not record its scheme. Save that part alone, or call unpatch_model on it{together}."
    )
