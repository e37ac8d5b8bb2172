"""PEFT adapters that know the scheme they were trained under, and refuse to work on another.

A saved adapter carries the scheme (see `hf_posenc.patching.peft_sidecar`) whoever saves it: PEFT, transformers
or `Trainer`, in whatever order the model was patched and adapted (see `hf_posenc.checkpoints.peft_hooks`). Loading
one here can patch its base: errors are in words, and a failure leaves the model as it was.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from hf_posenc.checkpoints.adapter_checks import check_complete, check_other_adapters, match_base
from hf_posenc.checkpoints.adapter_folder import AdapterFolder
from hf_posenc.checkpoints.hub import hub_options, with_hub_options
from hf_posenc.checkpoints.peft_methods import check_methods
from hf_posenc.core.files.staged import staged
from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import UnsupportedModel, WrongKind, shown
from hf_posenc.patching.float32 import keep_in_float32
from hf_posenc.patching.offloading import offloads_of
from hf_posenc.patching.patch import rollback_on_error
from hf_posenc.patching.peft_sidecar import PARAMETERS, SIDECAR
from hf_posenc.patching.state import check_live
from hf_posenc.patching.text_limits import raise_limits_in

if TYPE_CHECKING:
    from peft import PeftModel

OFFLOADED = (
    "Weights of this {kind} are offloaded, and PEFT would add an adapter without values to them. "
    "Add the adapter first, to a model loaded without offloading, and offload it afterwards."
)


@contextmanager
def without_peft_noise() -> Iterator[None]:
    """Hide a warning about an attribute that transformers has renamed and PEFT reads by its old name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        yield


@contextmanager
def adapter_staged(model: nn.Module, folder: str) -> Iterator[str]:
    """A folder to save an adapter into, whose files then replace those in ``folder``: all of them, or none."""
    with staged(folder, companions=(SIDECAR, PARAMETERS)) as staging:
        yield str(staging)
        raise_limits_in(Path(folder), model, into=staging)


def load_peft_adapter(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    patch: Literal["refuse", "apply"] = "refuse",
    adapter_name: str = "default",
    **kwargs: Any,
) -> PeftModel:
    """Load a saved PEFT adapter on the base it was trained on.

    Args:
        model: the base, patched with the adapter's scheme; or a PEFT model around it, which gets a further adapter.
        folder: the folder of the adapter, or its Hub name.
        patch: ``"refuse"`` a base under another scheme or none, or ``"apply"`` the adapter's scheme to it.
        adapter_name: its name in the model; ``set_adapter`` makes it the active one.
        **kwargs: of ``PeftModel.from_pretrained``, such as ``is_trainable`` and ``revision``.

    Returns:
        The PEFT model; its ``save_pretrained`` writes the scheme again.

    Raises:
        UnsupportedModel: ``model`` is no loaded model; or its weights are offloaded without a device map, which PEFT
            follows, or since they were loaded.
        WrongKind: ``patch`` is neither ``"refuse"`` nor ``"apply"``.
        PeftAdapterMismatch: base and adapter have different schemes or lengths; the model has an adapter of that name;
            its adapters share other learned positions; or the folder is damaged, incomplete or not safe to read.
    """
    check_live(model)
    if patch not in ("refuse", "apply"):
        raise WrongKind(f"patch says what to do with another base, got {shown(patch)}. Pass 'refuse' or 'apply'.")
    adapter = AdapterFolder.open(folder, **hub_options(kwargs))
    others = with_hub_options(kwargs, {})  # the folder is here now
    return attach_adapter(model, adapter, patch=patch == "apply", adapter_name=adapter_name, **others)


@explained_imports()
def attach_adapter(
    model: nn.Module, adapter: AdapterFolder, *, patch: bool, adapter_name: str = "default", **kwargs: Any
) -> PeftModel:
    """`load_peft_adapter` of a folder that has been opened; ``patch`` allows to patch the base. Raises as that does."""
    from peft import PeftModel

    check_methods()
    mapped = any(hasattr(module, "hf_device_map") for module in model.modules())
    before = [device for one in offloads_of(model).values() for device in one.original_devices.values()]
    if before and (not mapped or torch.device("meta") in before):  # PEFT brings weights back to where they were before
        raise UnsupportedModel(OFFLOADED.format(kind=type(model).__name__))
    folder = str(adapter.path)
    with adapter.explained_errors(), rollback_on_error(model), without_peft_noise():
        config, weights, parameters = adapter.peft_config(), adapter.weights(), adapter.position_parameters()
        if parameters and getattr(config, "modules_to_save", None):  # named before there was one: PEFT saved none
            config.modules_to_save = [name for name in config.modules_to_save if name != "posenc"] or None
        if isinstance(model, PeftModel):
            check_other_adapters(model, adapter_name, adapter)
            match_base(model, adapter, patch=False)
            model.add_adapter(adapter_name, config)
            model.load_adapter(folder, adapter_name, **kwargs)
            adapted = model
        else:
            match_base(model, adapter, patch=patch)
            adapted = PeftModel.from_pretrained(model, folder, adapter_name, config=config, **kwargs)
        if kwargs.get("autocast_adapter_dtype", True) and keep_in_float32(adapted):  # as it was trained
            adapted.load_adapter(folder, adapter_name, **kwargs)
        check_complete(adapted, adapter, weights, adapter_name)
    return adapted
