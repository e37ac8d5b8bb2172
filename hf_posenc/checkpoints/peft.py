"""Load PEFT adapters with the scheme they were trained under, and refuse them on a base with another scheme.

A saved adapter carries its scheme (`hf_posenc.patching.peft_sidecar`), whether PEFT, transformers or `Trainer` saves
it. The model may be patched before or after the adapter is added (`hf_posenc.checkpoints.peft_hooks`). Loading an
adapter here can patch its base. If that fails, the model is unchanged.
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
    """Hide the warning about an attribute that transformers has renamed and PEFT still reads by its old name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        yield


@contextmanager
def adapter_staged(model: nn.Module, folder: str) -> Iterator[str]:
    """Yield a staging folder for an adapter. Afterwards all its files, or none, replace those in ``folder``."""
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
        model: the base, patched with the adapter's scheme; or a PEFT model around it, which gets one more adapter.
        folder: folder of the adapter, or its Hub name.
        patch: ``"refuse"`` a base with another scheme or none, or ``"apply"`` the adapter's scheme to it.
        adapter_name: name of the adapter in the model; ``set_adapter`` activates it.
        **kwargs: arguments of ``PeftModel.from_pretrained``, such as ``is_trainable`` and ``revision``.

    Returns:
        The PEFT model; its ``save_pretrained`` writes the scheme again.

    Raises:
        UnsupportedModel: ``model`` is not a loaded model; or its weights are offloaded without a device map, which
            PEFT needs, or were offloaded after loading.
        WrongKind: ``patch`` is neither ``"refuse"`` nor ``"apply"``.
        PeftAdapterMismatch: base and adapter have different schemes or lengths; the model has an adapter of that name;
            its adapters share other learned positions; or the folder is damaged, incomplete or not safe to read.
    """
    check_live(model)
    if patch not in ("refuse", "apply"):
        raise WrongKind(f"patch has the unknown value {shown(patch)}. Pass 'refuse' or 'apply'.")
    adapter = AdapterFolder.open(folder, **hub_options(kwargs))
    peft_kwargs = with_hub_options(kwargs, {})  # the folder is local now
    return attach_adapter(model, adapter, patch=patch == "apply", adapter_name=adapter_name, **peft_kwargs)


@explained_imports()
def attach_adapter(
    model: nn.Module, adapter: AdapterFolder, *, patch: bool, adapter_name: str = "default", **kwargs: Any
) -> PeftModel:
    """Load an opened adapter like `load_peft_adapter`, with the same errors. ``patch`` allows to patch the base."""
    from peft import PeftModel

    check_methods()
    mapped = any(hasattr(module, "hf_device_map") for module in model.modules())
    devices = [device for hook in offloads_of(model).values() for device in hook.original_devices.values()]
    if devices and (not mapped or torch.device("meta") in devices):  # PEFT moves weights back to these devices
        raise UnsupportedModel(OFFLOADED.format(kind=type(model).__name__))
    folder = str(adapter.path)
    with adapter.explained_errors(), rollback_on_error(model), without_peft_noise():
        config, weights, parameters = adapter.peft_config(), adapter.weights(), adapter.position_parameters()
        if parameters and getattr(config, "modules_to_save", None):  # named before the patch, so PEFT has not saved it
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
        if kwargs.get("autocast_adapter_dtype", True) and keep_in_float32(adapted):  # load again without rounding
            adapted.load_adapter(folder, adapter_name, **kwargs)
        check_complete(adapted, adapter, weights, adapter_name)
    return adapted
