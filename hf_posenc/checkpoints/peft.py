"""Load PEFT adapters with the scheme they were trained under, and refuse them on a base with another scheme.

A saved adapter carries its scheme (`hf_posenc.patching.peft_sidecar`), whether PEFT, transformers or `Trainer` saves
it. The model may be patched before or after the adapter is added (`hf_posenc.checkpoints.peft_hooks`). Loading an
adapter here can patch its base. If that fails, the model is unchanged.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from hf_posenc.checkpoints.adapter_folder import PEFT_WEIGHTS, AdapterFolder
from hf_posenc.checkpoints.hub import hub_options, with_hub_options
from hf_posenc.checkpoints.peft_methods import check_methods
from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import PeftAdapterMismatch, UnsupportedModel, WrongKind, shown
from hf_posenc.patching.float32 import keep_in_float32
from hf_posenc.patching.offloading import offloads_of
from hf_posenc.patching.patch import patch_model, rollback_on_error, unpatch_model
from hf_posenc.patching.peft_sidecar import position_parameters
from hf_posenc.patching.scheme_config import SchemeConfig
from hf_posenc.patching.state import base_model_of, check_live, stacks_or_model

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


def match_base(model: nn.Module, adapter: AdapterFolder, *, patch: bool) -> None:
    """Check that a base carries the scheme of an adapter. If it does not, patch it if ``patch`` allows that."""
    expected, folder = adapter.scheme, adapter.path
    present = SchemeConfig.of_model(model)
    if present == expected:
        return
    if expected is None:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained without a scheme, but this base carries {present}. "
            "Call unpatch_model(base) first. You can call patch_model afterwards."
        )
    if not patch:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained under scheme {expected}, but this base carries "
            f"{present or 'none'}. "
            'Load a base that matches, or patch this one by load_peft_adapter(base, folder, patch="apply").'
        )
    if present is not None:
        unpatch_model(model)
    base, host = base_model_of(stacks_or_model(model)[0])
    length = host.host_length(base.config)
    if length != expected.host_length:
        raise PeftAdapterMismatch(
            f"The PEFT adapter in {folder} was trained on a base for {expected.host_length} positions, and this one "
            f"has {length}. Load the base it was trained on."
        )
    patch_model(model, **expected.arguments())


def check_other_adapters(model: PeftModel, name: str, adapter: AdapterFolder) -> None:
    """Refuse an adapter that conflicts with the adapters that a model has already."""
    if name in model.peft_config:
        raise PeftAdapterMismatch(
            f"This model carries a PEFT adapter called {name!r} already. Pass another adapter_name, or the base: "
            "model.unload()."
        )
    live = position_parameters(model)
    for key, value in adapter.position_parameters().items():
        if key in live and not torch.equal(live[key].detach().cpu(), value):
            raise PeftAdapterMismatch(
                f"The PEFT adapter in {adapter.path} was trained with another {key!r} than this model's "
                'adapters share. Load it on a base of its own, or train such adapters with modules_to_save=["posenc"].'
            )


def check_complete(model: PeftModel, adapter: AdapterFolder, weights: Mapping[str, Tensor], name: str) -> None:
    """Refuse an adapter whose file lacks weights, or has weights for layers that the model does not have.

    PEFT only warns about missing weights and initialises them at random. It drops additional weights silently.
    """
    from peft import get_peft_model_state_dict
    from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING

    file = adapter.path / PEFT_WEIGHTS
    expected = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    missing = sorted(expected.keys() - weights.keys())
    if missing:
        raise PeftAdapterMismatch(f"{file} lacks {missing[0]!r}. Copy or save the adapter again.")
    prefix = PEFT_TYPE_TO_PREFIX_MAPPING.get(model.peft_config[name].peft_type)
    unplaced = sorted(key for key in weights.keys() - expected.keys() if prefix is not None and prefix in key)
    if unplaced:
        raise PeftAdapterMismatch(
            f"{file} has {unplaced[0]!r}, but this base has no such layer. Load the base it was trained on."
        )


def load_position_parameters(model: nn.Module, adapter: AdapterFolder, saved: Mapping[str, Tensor]) -> None:
    """Copy the position parameters of an adapter's folder into ``model``."""
    live = position_parameters(model)
    different = sorted(saved.keys() ^ live.keys()) or [key for key in saved if saved[key].shape != live[key].shape]
    if different:
        raise PeftAdapterMismatch(
            f"{adapter.path} and the base differ in the position parameter {different[0]!r}. Save the adapter again."
        )
    for name, value in saved.items():
        live[name].data.copy_(value)
